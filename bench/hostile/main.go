// Command hostile attacks a server's address for containers with hostile peers: silence, garbage,
// false lengths, floods of PINGs, wrong answers. With -resets it attacks the gRPC door with
// clients that send and cancel requests at once. Command run measures the effect on others.
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
	runtime.GOMAXPROCS(1) // leave the machine to the processes that are measured
	log.SetFlags(0)
	containers := flag.String("containers", "127.0.0.1:7000", "`address` for containers")
	clients := flag.String("clients", "127.0.0.1:7001", "`address` for clients, which send requests to the hostile containers")
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
