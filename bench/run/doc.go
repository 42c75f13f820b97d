// Command run measures shivad relative to the limits of its machine, and checks floors. "make
// bench" runs it from the top of the repository.
//
//	run [-short] [-only REGEXP] [-rounds N] [-duration D] [-profile DIR] [-markdown]
//
// A single figure from a shared machine means little, so every figure here is a ratio to a
// reference that was measured right next to it. In each round all systems get the same load from
// the same generator, one after the other, every other round in reverse order, and ratios are taken
// within a round. The report has the median of the rounds, the lowest and the highest.
//
// There are two forms. Systems take turns under the same loads (turns.go), such as the four doors,
// or shivad beside a bare echo. Or one figure is taken with something and without it (with.go): a
// container with hostile peers, clients that do not read, a log that nobody reads. The parts are
// listed in bench/METHODS.md.
//
// It prints lines for benchstat, then the ratios, each with its limit, and exits with 1 if a ratio
// does not hold.
package main
