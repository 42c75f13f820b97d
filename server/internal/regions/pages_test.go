package regions

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/parameter"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

const page = 4 << 10

// sparse returns a registry with a payload budget of 64 pages, and a directory in shared memory.
func sparse(t *testing.T) (g *Registry, pool *tensor.Pool, dir string) {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "regions-test")
	if err != nil {
		t.Fatal(err)
	}
	pool = tensor.NewPool(64 * page)
	g = New(Settings{Directory: dir, RegionBytes: 1 << 30, Regions: 8}, pool)
	t.Cleanup(func() {
		if g.Close(); pool.InUse() != 0 {
			t.Errorf("%d bytes are in use in the end", pool.InUse())
		}
		os.RemoveAll(dir)
	})
	return g, pool, dir
}

// put writes pages of a region from an offset on.
func put(t *testing.T, g *Registry, region string, offset int64, pages int) error {
	t.Helper()
	x := tensor.Tensor{Name: "x", DType: tensor.Uint8, Shape: tensor.Shape{pages * page},
		Data: make([]byte, pages*page)}
	h, err := g.HoldOutput(Client{}, "x", parameter.Place{Region: region, Offset: offset, Size: int64(len(x.Data))})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Release()
	_, err = h.Put(&x)
	return err
}

// The memory that the server takes in a file without any is charged once, and a part of the budget
// is the most that it takes. Whoever watches is told each figure.
func TestPagesAreCharged(t *testing.T) {
	g, pool, dir := sparse(t)
	var told atomic.Int64
	g.Watch(func() { told.Store(g.Made()) })
	for name, size := range map[string]int64{"sparse": 1 << 30, "full": 32 * page} {
		f, err := os.Create(filepath.Join(dir, name))
		if err == nil {
			err = f.Truncate(size)
		}
		if err == nil && name == "full" {
			_, err = f.WriteAt(make([]byte, size), 0)
		}
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
		if err := g.Register(Client{}, Region{Name: name, Key: name, Size: size}); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		region string
		offset int64
		pages  int
		full   bool
		want   int64 // pages that are charged afterwards
	}{
		{"full", 0, 32, false, 0},
		{"sparse", 0, 4, false, 4},
		{"sparse", 0, 4, false, 4},
		{"sparse", 2 * page, 4, false, 6},
		{"sparse", 512<<20 + 1, 3, false, 10}, // parts of four
		{"sparse", 256 << 20, 7, true, 10},
		{"sparse", 256 << 20, 6, false, 16},
		{"sparse", 768 << 20, 1, true, 16},
		{"full", 0, 32, false, 16},
		{"sparse", 0, 6, false, 16},
	} {
		err := put(t, g, c.region, c.offset, c.pages)
		if errors.Is(err, scheduler.ErrOverloaded) != c.full || err != nil && !strings.Contains(err.Error(), "limits.payload_bytes") {
			t.Errorf("%d pages at %d of %s: %v", c.pages, c.offset, c.region, err)
		}
		got := pool.InUse()
		if got != c.want*page || g.Usage().Made != got || told.Load() != got {
			t.Errorf("after %d pages at %d of %s: %d bytes are charged and %d told, expected %d pages",
				c.pages, c.offset, c.region, got, told.Load(), c.want)
		}
	}
	// A file that its client has truncated has less.
	if err := os.Truncate(filepath.Join(dir, "sparse"), 3*page); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(filepath.Join(dir, "sparse"), 1<<30); err != nil {
		t.Fatal(err)
	}
	if err := put(t, g, "sparse", 256<<20, 2); err != nil || pool.InUse() != 5*page || told.Load() != 5*page {
		t.Errorf("in a truncated file: %v, %d bytes are charged and %d told", err, pool.InUse(), told.Load())
	}
}

// Memory in a file is charged for as long as it exists: after its region and its name have gone,
// too, if a client has the file open or mapped.
func TestPagesOfFilesWithoutNames(t *testing.T) {
	g, pool, dir := sparse(t)
	path := filepath.Join(dir, "f")
	for _, holds := range []string{"descriptor", "mapping", "name", "nothing"} {
		f, err := os.Create(path)
		if err == nil {
			err = f.Truncate(1 << 20)
		}
		if err == nil {
			err = g.Register(Client{}, Region{Name: "r", Key: "f", Size: 1 << 20})
		}
		if err != nil {
			t.Fatal(err)
		}
		var mapped []byte
		if holds == "mapping" {
			if mapped, err = unix.Mmap(int(f.Fd()), 0, 1<<20, unix.PROT_READ, unix.MAP_SHARED); err != nil {
				t.Fatal(err)
			}
		}
		if holds != "name" {
			_ = os.Remove(path)
		}
		if err := put(t, g, "r", 0, 8); err != nil {
			t.Fatal(err)
		}
		if holds != "descriptor" {
			f.Close()
		}
		if err := g.Unregister(Client{}, "r"); err != nil {
			t.Fatal(err)
		}
		g.pages.tick()
		if got := pool.InUse(); holds != "nothing" && got != 8*page {
			t.Errorf("while the client has its %s, %d bytes are charged", holds, got)
		}
		f.Close()
		_ = os.Remove(path)
		if mapped != nil {
			_ = unix.Munmap(mapped)
		}
		budgettest.Until(t, "the memory to be free", func() bool { return pool.InUse() == 0 })
	}
}
