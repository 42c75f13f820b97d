// Command hostile attacks a server's address for containers with hostile peers: silence, garbage,
// false lengths, floods of PINGs, wrong answers. With -trick it attacks the door for HTTP or gRPC, by
// what the protocol allows. Command run measures the effect on others.
//
//	hostile [-containers ADDR] [-clients ADDR] [-rate N]
//	hostile -trick NAME -at ADDR
package main

import (
	"context"
	"flag"
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
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if *trick != "" {
		if err := hostile.Trick(ctx, *trick, *at, "small"); err != nil {
			log.Fatal(err)
		}
		return
	}
	if err := hostile.Attack(ctx, *containers, *clients, *rate); err != nil {
		log.Fatal(err)
	}
}
