// Package containertest provides a scripted container for tests. It runs in the test's process,
// over memory or a socket, and behaves well or badly as the script says. It speaks RPC v4; a
// [Peer] sends arbitrary frames.
//
//	c, err := containertest.Join(listener, containertest.Model{
//		Name: "m", Version: "1", Inputs: in, Outputs: out,
//	})
//	defer c.Close()
//
// A Model without an Answer echoes its inputs. Its Answer may delay, fail, stay silent or die,
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
