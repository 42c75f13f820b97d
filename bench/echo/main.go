// Command echo is the reference for shivad's TCP door: gnet writes received bytes back within the
// event that delivers them. Nothing built on gnet can be faster.
//
//	echo [-listen 127.0.0.1:7] [-loops N]
//	echo [-listen 127.0.0.1:7] -tls-cert FILE -tls-key FILE
//
// With a certificate it is the reference for that door over TLS: crypto/tls alone.
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
	"syscall"

	"github.com/panjf2000/gnet/v2"
)

type handler struct {
	gnet.BuiltinEventEngine
	listen string
	stop   <-chan os.Signal
}

func (h *handler) OnBoot(e gnet.Engine) gnet.Action {
	fmt.Println(h.listen)
	go func() { // ends with the process, as the engine does
		<-h.stop
		e.Stop(context.Background())
	}()
	return gnet.None
}

func (h *handler) OnTraffic(c gnet.Conn) gnet.Action {
	p, err := c.Next(-1)
	if err != nil {
		return gnet.Close
	}
	if _, err := c.Write(p); err != nil {
		return gnet.Close
	}
	return gnet.None
}

func main() {
	listen := flag.String("listen", "127.0.0.1:7007", "address to listen on")
	loops := flag.Int("loops", runtime.GOMAXPROCS(0), "number of event loops")
	cert := flag.String("tls-cert", "", "speak TLS with the certificate in this `file`, in PEM")
	key := flag.String("tls-key", "", "`file` with the key of the certificate, in PEM")
	flag.Parse()
	log.SetFlags(0)
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, os.Interrupt, syscall.SIGTERM)
	h := &handler{listen: *listen, stop: stop}
	var err error
	if *cert != "" {
		err = encrypted(*listen, *cert, *key, stop)
	} else {
		err = gnet.Run(h, "tcp://"+*listen, gnet.WithReuseAddr(true),
			gnet.WithNumEventLoop(*loops))
	}
	if err != nil {
		log.Fatalf("echo: %v", err)
	}
}
