package jsontest

import (
	"encoding/json"
	"math/rand/v2"
	"testing"

	"github.com/shivad/shivad/shiva/budgettest"
)

// Most mutants are JSON and differ from the original; and the same choices make the same mutant.
func TestMutate(t *testing.T) {
	const text = `{"id":"a","inputs":[{"name":"x","shape":[1,4],"data":[[1,2.5,-3,4e9]]},{"name":"y","parameters":{"n":null}}],"b":true}`
	seed := Parse(t, text)
	if got := string(seed.Append(nil)); got != `{"id":"a","inputs":[{"name":"x","shape":[1,4],"data":[[1,2.5,-3,4e9]]},{"name":"y","parameters":{"n":null}}],"b":true}` {
		t.Fatalf("unchanged, it is %s", got)
	}
	random := rand.New(rand.NewPCG(1, 2))
	valid, different := 0, map[string]bool{}
	rounds := budgettest.Rounds(10_000)
	for range rounds {
		choices := make([]byte, 16)
		for i := range choices {
			choices[i] = byte(random.Uint32())
		}
		var made [2]string
		for i := range made {
			c := Choices(choices)
			v := seed.Clone()
			v.Mutate(&c)
			made[i] = string(v.Append(nil))
		}
		if made[0] != made[1] {
			t.Fatalf("the same choices made %s and %s", made[0], made[1])
		}
		if json.Valid([]byte(made[0])) {
			valid++
		}
		different[made[0]] = true
	}
	if valid < rounds*3/4 || len(different) < rounds/20 {
		t.Errorf("of %d, %d are JSON, and %d differ", rounds, valid, len(different))
	}
	if got := string(seed.Append(nil)); got != text {
		t.Errorf("the seed was changed to %s", got)
	}
}
