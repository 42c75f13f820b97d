// Package scheduler gathers requests into batches for replicas of models, so that as many as possible are
// answered by their deadlines.
package scheduler
