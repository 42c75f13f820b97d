package digits

import (
	"encoding/binary"
	"math"
	"os"
	"testing"
)

// heldOut returns the images that training did not see: Pixels bytes and a label each.
func heldOut(t testing.TB) [][]byte {
	t.Helper()
	data, err := os.ReadFile("heldout.u8")
	if err != nil {
		t.Fatal(err)
	}
	const size = Pixels + 1
	if len(data) == 0 || len(data)%size != 0 {
		t.Fatalf("heldout.u8 has %d bytes, not a multiple of %d", len(data), size)
	}
	rows := make([][]byte, len(data)/size)
	for i := range rows {
		rows[i] = data[i*size : (i+1)*size]
	}
	return rows
}

func TestAccuracyOnHeldOutImages(t *testing.T) {
	network, err := Load()
	if err != nil {
		t.Fatal(err)
	}
	rows := heldOut(t)
	right := 0
	var scores [Classes]float32
	for _, row := range rows {
		if network.Infer(row, scores[:]) == int(row[Pixels]) {
			right++
		}
	}
	if share := float64(right) / float64(len(rows)); share < 0.97 {
		t.Errorf("%d of %d right (%.1f %%), at least 97 %% expected", right, len(rows), 100*share)
	}
}

func TestScoresAreThoseOfTraining(t *testing.T) {
	network, err := Load()
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile("scores.f32")
	if err != nil {
		t.Fatal(err)
	}
	if len(want) != 20*Classes*4 {
		t.Fatalf("scores.f32 has %d bytes, %d expected", len(want), 20*Classes*4)
	}
	scores := make([]float32, Classes)
	for i, row := range heldOut(t)[:20] {
		for j := range scores {
			scores[j] = float32(math.NaN()) // old values must not matter
		}
		network.Infer(row, scores)
		for j, got := range scores {
			w := math.Float32frombits(binary.LittleEndian.Uint32(want[(i*Classes+j)*4:]))
			if !(math.Abs(float64(got-w)) < 1e-5) {
				t.Errorf("image %d, digit %d: score %g, training has %g", i, j, got, w)
			}
		}
	}
}

func TestInferDoesNotAllocate(t *testing.T) {
	network, err := Load()
	if err != nil {
		t.Fatal(err)
	}
	image, scores := make([]byte, Pixels), make([]float32, Classes)
	if n := testing.AllocsPerRun(100, func() { network.Infer(image, scores) }); n != 0 {
		t.Errorf("%v allocations, 0 expected", n)
	}
}
