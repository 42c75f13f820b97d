// Command echo is the reference for shivad's TCP door: gnet writes received bytes back within the
// event that delivers them. Nothing built on gnet can be faster.
//
//	echo [-listen 127.0.0.1:7] [-loops N]
//	echo [-listen 127.0.0.1:7] -tls-cert FILE -tls-key FILE
//	echo [-listen 127.0.0.1:7] -crowd BYTES [-after 15ms]
//	echo [-listen 127.0.0.1:7] -group REQUESTS -peer PATH
//
// With a certificate it is the reference for that door over TLS: crypto/tls alone. With -crowd
// it is the reference for those who wait for the newest answer of a stream: what is longer than
// a KiB is a frame, and answered with that many bytes, a while after it, to its sender and to all
// who have sent less before. With -group it is the reference for servers whose model is in another
// process, see grouping.
//
// It prints its address and serves until SIGTERM or SIGINT.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/panjf2000/gnet/v2"
)

type handler struct {
	gnet.BuiltinEventEngine
	listen string
	stop   <-chan os.Signal
	answer []byte        // to a frame; nil: received bytes are written back
	after  time.Duration // the frame
	crowd  []gnet.Conn   // who wait for it; of the event loop

	waiting atomic.Int32 // of crowd
}

func (h *handler) OnBoot(e gnet.Engine) gnet.Action {
	fmt.Println(h.listen)
	go stopOn(h.stop, e) // ends with the process
	return gnet.None
}

// stopOn stops an engine on a signal.
func stopOn(stop <-chan os.Signal, e gnet.Engine) {
	<-stop
	e.Stop(context.Background())
}

func (h *handler) OnTraffic(c gnet.Conn) gnet.Action {
	p, err := c.Next(-1)
	if err != nil {
		return gnet.Close
	}
	if h.answer != nil {
		return h.take(c, len(p))
	}
	if _, err := c.Write(p); err != nil {
		return gnet.Close
	}
	return gnet.None
}

// take has c wait for the next frame, or has a frame answered once its time has come. Then its
// sender is answered by the goroutine that has the answer, and all who wait by the event loop.
func (h *handler) take(c gnet.Conn, received int) gnet.Action {
	if received <= 1<<10 {
		h.waiting.Add(1)
		h.crowd = append(h.crowd, c)
		return gnet.None
	}
	fd, loop := c.Fd(), c.EventLoop()
	time.AfterFunc(h.after, func() { // the sender, who waits for it, outlives this
		_, _ = syscall.Write(fd, h.answer)
		if h.waiting.Load() > 0 {
			_ = loop.Execute(context.Background(), gnet.RunnableFunc(h.tell))
		}
	})
	return gnet.None
}

// tell answers all who wait.
func (h *handler) tell(context.Context) error {
	h.waiting.Store(0)
	for _, c := range h.crowd {
		_, _ = c.Write(h.answer)
	}
	h.crowd = h.crowd[:0]
	return nil
}

func main() {
	listen := flag.String("listen", "127.0.0.1:7007", "address to listen on")
	loops := flag.Int("loops", runtime.GOMAXPROCS(0), "number of event loops")
	cert := flag.String("tls-cert", "", "speak TLS with the certificate in this `file`, in PEM")
	key := flag.String("tls-key", "", "`file` with the key of the certificate, in PEM")
	crowd := flag.Int("crowd", 0, "answer frames with that many `bytes`, to all who wait; one event loop")
	after := flag.Duration("after", 0, "with -crowd: the `time` from a frame to its answers")
	group := flag.Int("group", 0, "pass the rows of so many `requests` to the peer at once")
	peer := flag.String("peer", "", "with -group: the `path` of the Unix socket for the peer")
	flag.Parse()
	log.SetFlags(0)
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, os.Interrupt, syscall.SIGTERM)
	h := &handler{listen: *listen, stop: stop, after: *after}
	if *crowd > 0 {
		h.answer, *loops = make([]byte, *crowd), 1
	}
	var err error
	switch {
	case *cert != "":
		err = encrypted(*listen, *cert, *key, stop)
	case *group > 0:
		err = (&grouping{listen: *listen, path: *peer, size: *group, stop: stop}).run()
	default:
		err = gnet.Run(h, "tcp://"+*listen, gnet.WithReuseAddr(true),
			gnet.WithNumEventLoop(*loops))
	}
	if err != nil {
		log.Fatalf("echo: %v", err)
	}
}
