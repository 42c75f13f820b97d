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
package apps
