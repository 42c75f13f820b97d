package main

import (
	"context"
	"strings"

	"github.com/shivad/shivad/bench/internal/ratio"
	"github.com/shivad/shivad/bench/load"
	"github.com/shivad/shivad/shiva/tensor"
)

// besideEcho compares a system with the bare echo, under four loads. The floors are those of
// bench/METHODS.md.
func besideEcho(how setup) func(context.Context, *bench) (findings, error) {
	return func(ctx context.Context, b *bench) (f findings, err error) {
		systems, loads := []setup{bareEcho, how}, []*workload{deep, gathered, single, image}
		all, err := b.turns(ctx, systems, loads)
		return findings{all.besideEcho(how.name), all.table(systems, loads), systemHead}, err
	}
}

func (all samples) besideEcho(name string) []ratio.Ratio {
	of, bar := all[name], all[bareEcho.name]
	var rates, images, trips ratio.Ratio
	switch name {
	case inDoor.name:
		rates, images = ratio.Ratio{Bound: ratio.AtLeast, Limit: 0.6}, ratio.Ratio{Bound: ratio.AtLeast, Limit: 0.7}
	case inGo.name:
		rates, images = ratio.Ratio{Bound: ratio.AtLeast, Limit: 0.2}, ratio.Ratio{Bound: ratio.AtLeast, Limit: 0.35}
		trips = ratio.Ratio{Bound: ratio.AtMost, Limit: 3}
	case inPython.name:
		rates, trips = ratio.Ratio{Bound: ratio.AtLeast, Limit: 0.45}, ratio.Ratio{Bound: ratio.AtMost, Limit: 3}
	}
	rates.What, images.What = name+" / echo: rate, "+deep.name, name+" / echo: rate, "+image.name
	trips.What = name + " / echo: p50 of one at a time, to two round trips"
	return []ratio.Ratio{
		over(rates, of[deep], bar[deep], rate),
		over(ratio.Ratio{What: name + " / echo: rate, " + gathered.name}, of[gathered], bar[gathered], rate),
		over(images, of[image], bar[image], rate),
		overTrips(trips, of[single], bar[single], p50),
	}
}

// ofSaturation is the offered load as a share of the rate of a closed loop. Requests that arrive
// one by one cost three times as much as those of a closed loop, which arrive in bursts: on two
// cores, which the load generator shares with server and container, this share keeps both cores
// busy.
const ofSaturation = 0.3

// Loads of 64 floats of many clients, and of a picture of one at a time.
var (
	numbers = &workload{name: "64 floats at 30 % of the rate", model: "numbers", dtype: tensor.Float32,
		shape: tensor.Shape{64}, conns: 16, inFlight: 16}
	picture = &workload{name: "3x224x224 float32, one at a time", model: "picture", dtype: tensor.Float32,
		shape: tensor.Shape{3, 224, 224}, conns: 1, inFlight: 1}
)

// overhead measures the latency that server and container add to a request when the model takes no
// time: that of an open loop at 30 % of their rate, and of pictures one at a time, against two
// round trips to the bare echo at the same rate.
func overhead(ctx context.Context, b *bench) (f findings, err error) {
	s, err := b.start(ctx, inGo, numbers)
	if err != nil {
		return f, err
	}
	most, err := b.turn(ctx, s, numbers, 0, false)
	s.Stop()
	if err != nil {
		return f, err
	}
	systems, loads := []setup{bareEcho, inGo}, []*workload{numbers, picture}
	all, err := b.turnsAt(ctx, systems, loads, func(w *workload) float64 {
		if w == numbers {
			return ofSaturation * most.rate
		}
		return 0
	})
	for _, w := range loads {
		of, bar := all[inGo.name][w], all[bareEcho.name][w]
		f.ratios = append(f.ratios,
			overTrips(ratio.Ratio{What: "go / two round trips of echo: p50, " + w.name, Bound: ratio.AtMost, Limit: 3},
				of, bar, p50),
			overTrips(ratio.Ratio{What: "go / two round trips of echo: p99, " + w.name, Bound: ratio.AtMost, Limit: 5},
				of, bar, p99))
	}
	f.table, f.head = all.table(systems, loads), systemHead
	return f, err
}

// encrypted compares the TCP door over TLS, its model inside the process, with a bare echo by
// crypto/tls. Both have the same certificate, cipher and client, which shares the cores, so the
// server's own processor time is reported as well.
func encrypted(ctx context.Context, b *bench) (f findings, err error) {
	echo, door := setup{name: "echo over TLS", tls: true, start: startEcho},
		setup{name: "door over TLS", tls: true, start: startDoor}
	systems, loads := []setup{echo, door}, []*workload{deep, image}
	all, err := b.turns(ctx, systems, loads)
	for _, w := range loads {
		of, bar := all[door.name][w], all[echo.name][w]
		f.ratios = append(f.ratios,
			over(ratio.Ratio{What: "door over TLS / bare crypto/tls echo: rate, " + w.name, Bound: ratio.AtLeast,
				Limit: 0.7}, of, bar, rate),
			over(ratio.Ratio{What: "door over TLS / bare crypto/tls echo: CPU, " + w.name}, of, bar, server))
	}
	f.table, f.head = all.table(systems, loads), systemHead
	return f, err
}

// doorNames are the names of the forms in the tables.
var doorNames = map[string]string{"shiva": "Shiva", "rest": "REST, bytes", "rest-json": "REST, JSON", "grpc": "gRPC, raw"}

// doorLoads are one small and one large load in each form, with the same total number of requests
// in flight, on as few connections as the wire allows. The first of each is Shiva's.
func doorLoads() (loads [][]*workload) {
	for _, l := range []workload{
		{name: "64 B, 256 in flight", model: "small", dtype: tensor.Float32, shape: tensor.Shape{16}, conns: 16,
			inFlight: 16},
		{name: "602 KB, 8 in flight", model: "picture", dtype: tensor.Float32, shape: tensor.Shape{3, 224, 224},
			conns: 4, inFlight: 2},
	} {
		var forms []*workload
		for _, f := range load.Forms {
			w := l
			w.name, w.form = doorNames[f.Name]+", "+l.name, f
			forms = append(forms, &w)
		}
		loads = append(loads, forms)
	}
	return loads
}

// doors offers the same load to one model inside the server's process through each of the doors in
// turn.
func doors(ctx context.Context, b *bench) (findings, error) {
	loads := doorLoads()
	small, large := loads[0], loads[1]
	list := append(append([]*workload(nil), small...), large...)
	all, err := b.turns(ctx, []setup{inDoor}, list)
	return findings{all.doors(loads), all.table([]setup{inDoor}, list), systemHead}, err
}

// doors returns the ratios of the rate through each door to that through Shiva's. A large tensor
// as bytes has a floor.
func (all samples) doors(loads [][]*workload) (rs []ratio.Ratio) {
	for size, forms := range loads {
		shiva := forms[0]
		for _, w := range forms[1:] {
			r := ratio.Ratio{What: doorNames[w.form.Name] + " / Shiva: rate, " + strings.TrimPrefix(shiva.name, "Shiva, ")}
			if size > 0 && w.form.Name != "rest-json" {
				r.Bound, r.Limit = ratio.AtLeast, 0.5
			}
			rs = append(rs, over(r, all[inDoor.name][w], all[inDoor.name][shiva], rate))
		}
	}
	return rs
}
