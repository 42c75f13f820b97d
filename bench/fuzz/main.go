// Command fuzz pushes nearly valid frames through the decoders of Shiva and ZMTP, and over sockets
// to a shivad with a container, and prints their number, their rate and their outcomes.
//
//	fuzz [-shiva N] [-zmtp N] [-socket N] [-seed N]
//
// It exits with 1 if anything panics, if 100 streams take longer than a second, if a decoder holds
// or allocates more memory than the received bytes warrant, if a message over a socket does not get
// exactly one answer, with its id, or if the server takes more memory than its budget and 64 MiB.
// "make fuzz" looks for inputs that reach new code; this program tries a large number.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"time"

	"github.com/shivad/shivad/bench/internal/process"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("fuzz: ")
	shiva := flag.Int("shiva", 30_000_000, "number of Shiva `frames` for the decoder")
	zmtp := flag.Int("zmtp", 20_000_000, "number of ZMTP `frames` for the decoder")
	socket := flag.Int("socket", 10_000_000, "number of Shiva `frames` that are sent to a shivad")
	seed := flag.Uint64("seed", 1, "seed of the frames")
	flag.Parse()
	if err := process.AtTop(); err != nil {
		log.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := decode(ctx, "shiva", *shiva, *seed, newShivaStreams); err != nil {
		log.Fatal(err)
	}
	if err := decode(ctx, "zmtp", *zmtp, *seed, newZMTPStreams); err != nil {
		log.Fatal(err)
	}
	if err := overSockets(ctx, *socket, *seed); err != nil {
		log.Fatal(err)
	}
}

// rate is a number of frames per second.
func rate(frames int, took time.Duration) string {
	return fmt.Sprintf("%.0f/s", float64(frames)/took.Seconds())
}
