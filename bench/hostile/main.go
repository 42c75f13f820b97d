// Command hostile lets peers that do their worst at a server's address for containers: silent
// ones, rubbish, lengths that lie, floods of PINGs, wrong answers. Or clients at its gRPC door,
// who ask and cancel at once. "run" measures what that does to others.
//
//	hostile [-containers ADDR] [-clients ADDR] [-rate N]
//	hostile -resets ADDR
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
	runtime.GOMAXPROCS(1) // as little as possible of the machine that others are measured on
	log.SetFlags(0)
	containers := flag.String("containers", "127.0.0.1:7000", "`address` for containers")
	clients := flag.String("clients", "127.0.0.1:7001", "`address` for clients, who ask the hostile containers")
	rate := flag.Int("rate", 5, "peers of each kind in a `second`")
	resets := flag.String("resets", "", "`address` of the gRPC door: only reset calls there")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if *resets != "" {
		if err := hostile.Reset(ctx, *resets, "small"); err != nil {
			log.Fatal(err)
		}
		return
	}
	if err := hostile.Attack(ctx, *containers, *clients, *rate); err != nil {
		log.Fatal(err)
	}
}
