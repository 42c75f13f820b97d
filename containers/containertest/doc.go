// Package containertest is a container for tests: it runs in the test's process, over memory or
// a socket, and does what a script says, good or bad. It speaks RPC v4; a [Peer] sends any
// frames at all.
//
//	c, err := containertest.Join(listener, containertest.Model{Name: "m", Version: "1", Inputs: in, Outputs: out})
//	defer c.Close()
//
// A Model without an Answer echoes its inputs. With one it may delay, fail, keep silent or die,
// batch by batch:
//
//	Answer: func(b *containertest.Batch) containertest.Reply {
//		if b.N == 3 {
//			return containertest.Reply{Die: true}
//		}
//		return containertest.Reply{Outputs: b.Inputs, Delay: 5 * time.Millisecond}
//	},
//
// Everything works inside a testing/synctest bubble over [Pipe].
package containertest
