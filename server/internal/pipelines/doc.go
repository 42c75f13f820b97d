// Package pipelines keeps pipelines: names that stand for several models, of which some take what
// others answer.
//
//	Definition --New--> Pipeline (its graph is sound) --Fit--> Plan (it fits its models)
//
// A definition is checked twice. New reads nothing but the definition: names, references, circles,
// stages that nobody reads, whose rows each stage has. Fit compares it with what the models declare
// now, along every edge. Both list all faults, with the stage, what was expected and what came.
//
// # Rows
//
//   - A stage has the rows of the request, or those of an earlier stage, or, with each, a row for
//     every element of an output. What contains them is their scope, which is known from the
//     definition; how many there are, from the answers.
//   - A stage reads what has a value for each of its rows: values of its own scope, values of the
//     scopes around it, of which all rows inside get the same, and elements beside those of each.
//     No stage joins the rows of another one again. A model that takes the whole ragged output of a
//     row can say something of all of its objects.
//   - Boxes are in pixels of the upright picture unless the stage says that they are parts. The
//     values do not tell: a box of one pixel in the corner would be one of the whole picture.
package pipelines
