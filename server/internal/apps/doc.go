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
package apps
