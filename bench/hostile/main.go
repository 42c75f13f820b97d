// Command hostile attacks a server's address for containers with hostile peers: silence, garbage,
// false lengths, floods of PINGs, wrong answers. With -trick it attacks the door for HTTP or gRPC
// by means that the protocol allows. With -crawl it attacks a TLS address with clients that do not
// finish their handshakes, and with others that send a byte a second. With -burn it only takes a
// share of the processors. Command run measures the effect of all of these on other clients.
//
//	hostile [-containers ADDR] [-clients ADDR] [-rate N]
//	hostile -trick NAME -at ADDR [-from N]
//	hostile -crawl ADDR [-crawlers N]
//	hostile -burn SHARE
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

	"github.com/shivad/shivad/bench/internal/hostile"
)

func main() {
	runtime.GOMAXPROCS(1) // leave the machine to the processes that are measured
	log.SetFlags(0)
	containers := flag.String("containers", "127.0.0.1:7000", "`address` for containers")
	clients := flag.String("clients", "127.0.0.1:7001", "`address` for clients, which send requests to the hostile containers")
	rate := flag.Int("rate", 5, "peers of each kind in a `second`")
	trick := flag.String("trick", "", "only the trick of this `name`")
	at := flag.String("at", "127.0.0.1:8001", "`address` of the door that it is played on")
	from := flag.Int("from", 0, "it comes from that `number` of addresses, 127.0.0.2 and those after it, up to 250; 0: from one")
	crawl := flag.String("crawl", "", "`address` of TLS: only clients that do not finish their handshakes there, and slow ones")
	crawlers := flag.Int("crawlers", 1000, "of each of both, as many `clients`")
	burn := flag.Float64("burn", 0, "only take that `share` of the processors, 1.5 being one and a half")
	flag.Parse()
	if *from < 0 || *from > 250 {
		log.Fatalf("-from is %d, expected 0 to 250", *from)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ready := func() { fmt.Println("ready") }
	var err error
	switch {
	case *trick != "":
		err = hostile.Trick(ctx, *trick, &hostile.Sources{Many: *from}, *at, "small", ready)
	case *crawl != "":
		err = hostile.Crawl(ctx, *crawl, *crawlers, ready)
	case *burn > 0:
		hostile.Burn(ctx, *burn)
	default:
		err = hostile.Attack(ctx, *containers, *clients, *rate)
	}
	if err != nil {
		log.Fatal(err)
	}
}
