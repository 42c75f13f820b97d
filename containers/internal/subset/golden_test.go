package subset

import (
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write testdata/subsets.json anew")

// subsetVectors are the choices that both SDKs must make.
type subsetVectors struct {
	Orders []struct {
		Key     string   `json:"key"`
		Servers []string `json:"servers"`
		Order   []string `json:"order"`
	} `json:"orders"`
	Scenes []subsetScene `json:"scenes"`
}

// A subsetScene is the life of a container: at each step the servers are listed, or the chosen ones
// have given sessions and a trial is judged, or a trial may start.
type subsetScene struct {
	Key   string       `json:"key"`
	Size  int          `json:"size"`
	Steps []subsetStep `json:"steps"`
}

type subsetStep struct {
	At       float64        `json:"at"` // seconds
	List     []string       `json:"list,omitempty"`
	Away     []string       `json:"away,omitempty"`
	Sessions map[string]int `json:"sessions,omitempty"`
	Chosen   []string       `json:"chosen"` // after the step
	Trying   string         `json:"trying"` // after the step
}

const vectorsFile = "../../testdata/subsets.json"

// play runs the steps of a scene, and calls f with the choice after each.
func (c *subsetScene) play(f func(step *subsetStep, chosen []string, trying string)) {
	s := Choice{key: c.Key, size: c.Size}
	var chosen []string
	for i := range c.Steps {
		step := &c.Steps[i]
		now := time.Unix(0, 0).Add(time.Duration(step.At * float64(time.Second)))
		switch {
		case step.List != nil:
			s.List(step.List, now)
		case s.trying != "":
			s.Judge(chosen, func(a string) int { return step.Sessions[a] }, now)
		default:
			s.Try(chosen, now)
		}
		chosen = s.Chosen(func(a string) bool { return slices.Contains(step.Away, a) })
		f(step, chosen, s.trying)
	}
}

// TestSubsetVectors: the order and the choice of servers are those of testdata/subsets.json, which
// the SDK for Python tests, too.
func TestSubsetVectors(t *testing.T) {
	var v subsetVectors
	if *update {
		v = makeSubsetVectors()
		text, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(vectorsFile, append(text, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(vectorsFile)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatal(err)
	}
	for _, o := range v.Orders {
		if got := rendezvous(o.Key, o.Servers); !slices.Equal(got, o.Order) {
			t.Errorf("for %q the order is %v, want %v", o.Key, got, o.Order)
		}
	}
	moves := 0
	for _, c := range v.Scenes {
		var before []string
		c.play(func(step *subsetStep, chosen []string, trying string) {
			if !slices.Equal(chosen, step.Chosen) || trying != step.Trying {
				t.Fatalf("at %v s %v are chosen and %q is tried, want %v and %q", step.At, chosen, trying, step.Chosen,
					step.Trying)
			}
			if !slices.Equal(chosen, before) {
				moves++
			}
			before = chosen
		})
	}
	if moves < 50 {
		t.Errorf("the choice changes %d times in all scenes, want 50", moves)
	}
}

func makeSubsetVectors() (v subsetVectors) {
	random := rand.New(rand.NewPCG(18, 2))
	server := func(i int) string { return fmt.Sprintf("10.0.0.%d:7000", i) }
	some := func(n, of int) (list []string) {
		for _, i := range random.Perm(of)[:n] {
			list = append(list, server(i))
		}
		slices.Sort(list)
		return list
	}
	v.Orders = make([]struct {
		Key     string   `json:"key"`
		Servers []string `json:"servers"`
		Order   []string `json:"order"`
	}, 4)
	for i, o := range [][]string{{}, some(3, 3), some(8, 20), {"[2001:db8::1]:7000", "[fe80::1]:7000", "10.0.0.1:7000", "10.0.0.1:7001"}} {
		v.Orders[i].Key, v.Orders[i].Servers = fmt.Sprintf("container-%d ü", i), o
		v.Orders[i].Order = rendezvous(v.Orders[i].Key, o)
	}
	for i := range 4 {
		c := subsetScene{Key: fmt.Sprintf("scene %d", i), Size: 1 + i}
		at := 0.0
		var listed []string
		for k := range 80 {
			step := subsetStep{At: at}
			switch {
			case k%20 == 0:
				listed = some(c.Size+random.IntN(8), 12)
				step.List = listed
			case k%5 == 0: // as when the name is looked up again
				step.List = listed
			default:
				step.Sessions = map[string]int{}
				for j := range 12 {
					step.Sessions[server(j)] = random.IntN(5)
				}
			}
			if random.IntN(4) == 0 {
				step.Away = some(random.IntN(4), 12)
			}
			c.Steps = append(c.Steps, step)
			at += float64(random.IntN(40)) / 2
		}
		c.play(func(step *subsetStep, chosen []string, trying string) { step.Chosen, step.Trying = chosen, trying })
		v.Scenes = append(v.Scenes, c)
	}
	return v
}
