// Package composite has what all names that stand for several models have in common: their
// definitions in the store, followed as other servers change them, and the order in which the
// answers of a stream leave, whichever models made them. What becomes of a request is for the
// kinds: packages apps and pipelines.
package composite
