// Package apps keeps applications: names that stand for one or several models, chosen between,
// combined and judged by a selection policy that learns.
//
//	gate.Call --application.Open--> fanout: a gate.Call for each model --> the answer
//
//	state.Store --"apps/NAME"----------> Registry: App (definition, policy)
//	            --"policy/NAME/USER"---> Registry.State
//	            <--Update, atomic, once-- Registry.Learn <-- feedback + Prediction
//
// Apps are linked to models at every change. A policy's state is read for every request, from
// memory. Predictions holds what models predicted for feedback that arrives later.
//
// Definitions and policy states are in the store, so that servers that share one serve the same
// applications and learn together. Predictions are in the memory of the server that made them,
// for [Lifetime] and bounded by bytes.
//
// A fanout owns the calls that it makes for one request, until its last reference is released; see
// there.
//
// Concurrency: everything may be called from any goroutine. Apps and Definitions do not change once
// returned.
//
// # Definitions and state
//
//   - A fanout without references is recycled, with its calls. The outer call's reference keeps it
//     until the answer is written; the calls that should answer need none, as the end of the outer
//     call waits for them; each shadow has one. After Finish of the outer call nothing of the
//     fanout may be touched without a reference. So Submit lists all calls of a fan-out before it
//     submits any: the completion of the last one may be the end of the fanout.
//   - A call is fanned out according to its own type, not to the current routes: the application
//     may have been deleted since the call was opened.
//   - An application's name takes precedence over a model's. Registration and creation refuse a
//     name that both would have, but two servers that share a store may see different models. Then
//     requests for the name go to the application, name/version still to the model, and the log
//     says so.
//
// # A request to an application
//
//   - The gate needs no timer for the deadline: every call has it, and the scheduler ends each by
//     then.
//   - Models that do not accept the request, refuse it, are late, or whose answer cannot be
//     combined with that of the heaviest one are in Choice.Missing, each with the reason. The
//     request fails only if no model has answered; the error is that of the model asked first.
//   - The default output stands in for DeadlineExceeded, Overloaded, Unavailable, ContainerFailed
//     and ContainerLost, and for nothing else: not for an invalid request, nor for a client that
//     has disconnected, nor while draining. Check refuses one that does not fit what the linked
//     models declare. It needs the declaration of a candidate, so there is no default output before
//     a container of a linked model has registered.
//   - The answer names the model that contributed most to it (weight times agreement), and is
//     written according to that model's declaration: candidates need not have the same outputs.
//   - A client asks again on its answer, not on a model's. So the requests to the models have
//     scheduler.Parts, by which each model learns when all have answered.
//   - Metrics count the request once, under the application's name without a version. The models'
//     own metrics include its batches and rows, not its requests. Feedback is counted with requests
//     that have no model.
//   - A panic while predictions are combined or feedback is learned becomes an Internal error of
//     that request: it would otherwise unwind a container's or the scheduler's goroutine and end
//     the process.
//
// Feedback (name/update, gate.Feedback) is not a call: doors open it, have it learned and get one
// answer. If it has the id of a request that this server answered within the last ten minutes, it
// is about the predictions made for that request (apps.Predictions, 64 MiB). Otherwise it needs the
// input: it owns a fan-out that asks the models again, as above, and judges their predictions.
// Either way a goroutine of its own (at most 256) has the store run selection.Feedback in one
// atomic step, since Redis may be slow, and answers; Registry.Close waits for these goroutines. The
// store remembers ids for 24 hours: the same feedback is learned once, on whichever server it
// arrives. If a client reuses an id, it names the newer request, but feedback with it is not
// learned again within those 24 hours.
//
// Feedback that was learned is then passed on, at most once, to the models that were asked and have
// replicas that want it (lesson.go), together with their inputs. Inputs are copied
// for such models only, into 64 MiB apart from the predictions, where the oldest give way; without
// its input a lesson is dropped. No request waits for lessons.
//
// Feedback teaches the application as it is when the feedback is learned, with its current
// candidates. A state has arms for the candidates of the server that wrote it last; the arms of
// other models are set aside in it (selection.State.Aside) and come back unchanged, on the same
// scale of weights. So nothing is lost by a restart, where containers connect one after the other,
// by a link that is removed and made again, or by two servers that see two versions during a
// rolling update, and a version inherits once. Before, such changes moved one arm back and forth,
// with the discount each time: a log-weight of -5.89 after 60 feedbacks was -0.40 after 12 more.
// What another policy has learned for the user is stored alongside (Others), so a server that has
// not yet learned of a change of policy writes its own part only. A server that cannot read a state
// (a later format, an unknown policy) serves without it and does not overwrite it.
//
// Every server checks, at most every two seconds and only after something was learned, for states
// to delete (apps.tidy): those of deleted applications, since feedback may arrive after the
// deletion, and those of the least recently used users above state.users. Use is measured in
// revisions of the store, which all servers share: the revision of the state, or the newest one
// known when this server last asked for the state. A state that changes while it is being selected
// stays.
//
// go test -run '^$' -bench Application ./server/internal/apps, minimum of eight runs on a machine
// with other load: a request to a model inside the process 1.8 µs, to an application that asks that
// one model 2.9 µs (1.6 times) with 5 allocations more, with exp3 over three models 3.1 µs, and
// with a vote of three 8.0 µs, where three requests to models would take 5.4 µs.
// TestApplicationAllocations bounds the allocations.
package apps
