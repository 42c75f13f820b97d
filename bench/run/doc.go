// Command run measures shivad against the limits of the machine it runs on and says whether the
// floors hold. "make bench" runs it, from the top of the repository.
//
//	run [-short] [-only REGEXP] [-rounds N] [-duration D] [-profile DIR] [-markdown]
//
// A single figure from a shared machine says little, so every figure here is a ratio to a bar
// that was measured right beside it: in each round all systems take the same load from the same
// generator, one after the other, every other round in reverse order, and the ratio is taken
// within the round. What is reported is the median of the rounds, with the lowest and the
// highest.
//
//	codec    decode and encode of package shiva, against copy of the same bytes
//	json     JSON of 150,528 floats into a tensor, against encoding/json into a slice
//	doors    the same model through Shiva, HTTP and gRPC, against Shiva; it is inside the process
//	batches  a batch to a container and back, against a bare ZMTP exchange of the same bytes
//	hostile  p99 of requests to a container beside hostile ones, against the same without them
//	bombs    p50 of requests beside gzip bodies that unpack a thousandfold, against the same beside as much CPU burnt
//	resets   p50 of requests beside rapid resets over gRPC, against the same beside as much CPU burnt
//	unread   p99 of requests beside clients that read none of their answers, against the same without them
//	echo     bare gnet, writing back what it read: the bar of all that follows
//	door     the TCP door, the gate and the scheduler, with a model inside the process
//	go       shivad with a container in Go, a process of its own
//	python   shivad with a container in Python
//
// It prints lines that benchstat reads, then the ratios, each beside its floor, and exits with
// 1 when one is below.
package main
