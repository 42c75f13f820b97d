// Package pipelines keeps pipelines: names that stand for several models, of which some take what
// others answer.
//
//	Definition --New--> Pipeline (its graph is sound) --Fit--> Plan (it fits its models)
//
// A definition is checked twice. New reads nothing but the definition: names, references, circles,
// stages that nobody reads, whose rows each stage has. Fit compares it with what the models declare
// now, along every edge. Both list all faults, with the stage, what was expected and what came.
//
//   - A stage has the rows of the request, or those of an earlier stage, or, with each, a row for
//     every element of an output. What contains them is their scope, which is known from the
//     definition; how many there are, from the answers.
//
//   - A stage reads what has a value for each of its rows: values of its own scope, values of the
//     scopes around it, of which all rows inside get the same, and elements beside those of each.
//     No stage joins the rows of another one again. A model that takes the whole ragged output of a
//     row can say something of all of its objects.
//
//   - Boxes are in pixels of the upright picture unless the stage says that they are parts. The
//     values do not tell: a box of one pixel in the corner would be one of the whole picture.
//
//     gate.Call --pipeline.Open--> run: for each stage, a gate.Call for every row --> the answer
//
//   - Each row is a call of its own. So a row that is wrong, a culprit, a deadline costs that row,
//     by the rules that the scheduler has for requests anyway, and rows of all frames, cameras and
//     clients share batches. It costs about two microseconds a row more than one call for all.
//
//   - A run has no goroutine. Whoever completes a call begins what the answer makes possible, on
//     that goroutine, with all rows of a stage in one Submit. Work that is under way is counted;
//     whoever ends the last piece answers. So there is one answer, and no call is left then.
//
//   - Rows that a model answers in one batch enter the next stage together (Gate.SubmitNext). The
//     calls of a run are parts of its request (scheduler.Parts), by which each model learns when
//     the client has its answer.
//
//   - Rows refer to the memory of the request and of earlier stages, which holds it until the last
//     stage that reads it is done. What is computed is copied: regions, and the answer where
//     several rows are joined. What the request's tensors came in is their door's until the answer
//     is written.
//
//   - What a container has decoded of a file in the request is handed on to the stages after it, by
//     shared memory between containers and server (opened.go, scheduler.Opened): pixels are what a
//     stage has computed, and the file is there for whoever cannot use them.
//
//   - The rows of a stage must be answered early enough for the stages after it: their deadline is
//     that of the request, less what those take at least, by the optimistic times of the fastest
//     replicas. So the admission of the first stage counts the rest, and a stage that cannot be in
//     time is not begun.
//
//   - What is believed of a late stage thus makes requests fail that never reach it, and a belief
//     that nothing corrects would last. So in every second one request of a pipeline is served as
//     if nothing were believed: its rows reach each stage that the others are kept from, whose
//     model then learns, or not, by the scheduler's own rules.
//
//   - What a request lacks at one stage it never asks of the others. Its rows count there all the
//     same for the replicas that are needed, as many as requests have (missed.go).
//
//   - A stage that is required makes the request fail with its first error, and cancels the rest. A
//     stage that is not leaves a hole, with the code of the error as its status; what reads a hole
//     is one, with the same status. Stages with the rows of the request are required unless they
//     say otherwise: an answer without objects must not look like a picture without objects.
//
//   - Nested pipelines and applications are calls like others. They are asked once for each row.
//
//   - The calls of the stages that read nothing but the request are frames, one stream for each
//     stage: the models' queues supersede what waits.
//
//   - A later stage has a row for every object, and a frame that found nothing would overtake. So
//     frames enter it through a line (lines.go): in the order in which they came, as many at a time
//     as there are replicas, and of those that wait the newest stay. One that has entered is not
//     superseded, so a stage that is slower than its stream is never starved. Without a bound on
//     waiting frames there is no line.
//
//   - Answers leave in the order of the stream, as those of an application do (composite.Order).
//
// TestRandomPipelines is the proof of all this, on virtual time with scripted containers;
// -pipelines says how many it makes (a million take about an hour).
package pipelines
