package arena_test

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shivad/shivad/containers/internal/arena"
	"github.com/shivad/shivad/shiva/tensor"
)

// BenchmarkGather compares two places where the rows of several requests can be put together: the
// server, in another place of the segment, of which the container gets a view (by=server), or the
// container, in memory that it reuses (by=container). The processor time of both threads is
// compared, and the container reads all of it once; server-µs is the part on the server's thread,
// where other requests wait.
//
//	go test ./containers/internal/arena -run '^$' -bench Gather -count 9 | benchstat -col /by -
func BenchmarkGather(b *testing.B) {
	for _, c := range []struct{ rows, size int }{{2, 150_000}, {4, 150_000}, {8, 150_000}, {16, 150_000}, {2, 6 * mib},
		{3, 6 * mib}, {4, 6 * mib}} {
		for _, by := range []string{"server", "container"} {
			b.Run(fmt.Sprintf("rows=%dx%dKB/by=%s", c.rows, c.size/1000, by), func(b *testing.B) {
				benchGather(b, c.rows, c.size, by == "server")
			})
		}
	}
}

func benchGather(b *testing.B, rows, size int, byServer bool) {
	a := arena.New(128*mib, func(err error) { b.Fatal(err) })
	pool := tensor.NewPoolFrom(a, 0)
	take := func(n int) []byte {
		buf, err := pool.Get(n)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(buf.Release)
		return buf.Bytes()
	}
	var places [][]byte
	for range rows {
		places = append(places, take(size))
	}
	whole := take(rows * size)
	segment, _ := a.Find(whole)
	token, err := hex.DecodeString(segment.Token)
	if err != nil {
		b.Fatal(err)
	}
	there, err := arena.Map(segment.Path, segment.Size(), token, false) // as the container sees it
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { arena.Unmap(there); a.Renew() })
	view := func(data []byte) []byte {
		_, at := a.Find(data)
		return there[at:][:len(data)]
	}
	requests, answers := make(chan []byte), make(chan time.Duration)
	go func() { // until requests is closed
		runtime.LockOSThread()
		defer close(answers)
		memory := make([]byte, 0, rows*size)
		for data := range requests {
			began := cpuTime(b)
			if data == nil {
				data = memory[:0]
				for _, p := range places {
					data = append(data, view(p)...)
				}
			}
			if bytes.Count(data, []byte{1}) > 0 { // reads all of it
				b.Error("a byte was changed")
			}
			answers <- cpuTime(b) - began
		}
	}()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	source := make([]byte, size)
	var server, container time.Duration
	for b.Loop() {
		for _, p := range places {
			copy(p, source) // as it comes from a socket
		}
		began := cpuTime(b)
		var data []byte
		if byServer {
			gathered := whole[:0]
			for _, p := range places {
				gathered = append(gathered, p...)
			}
			data = view(whole)
		}
		server += cpuTime(b) - began
		requests <- data
		container += <-answers
	}
	close(requests)
	<-answers
	b.ReportMetric(float64((server+container).Nanoseconds())/1e3/float64(b.N), "cpu-µs/batch")
	b.ReportMetric(float64(server.Nanoseconds())/1e3/float64(b.N), "server-µs/batch")
}

// BenchmarkPages compares ordinary pages of shared memory with huge ones, by the processor time of
// copying a frame of 6.2 MB there and back, in memory that was used before and in new memory. Huge
// pages are those of a tmpfs mounted with huge=always: files of memfd_create have them only where
// /sys/kernel/mm/transparent_hugepage/shmem_enabled allows it. The benchmark needs root.
//
//	go test ./containers/internal/arena -run '^$' -bench Pages -count 9 | benchstat -col /pages -
func BenchmarkPages(b *testing.B) {
	for _, reused := range []bool{true, false} {
		for _, pages := range []string{"4KiB", "2MiB"} {
			b.Run(fmt.Sprintf("reused=%v/pages=%s", reused, pages), func(b *testing.B) { benchPages(b, reused, pages == "2MiB") })
		}
	}
}

func benchPages(b *testing.B, reused, huge bool) {
	const size, frame = 64 * mib, 6_220_800
	options := "huge=never"
	if huge {
		options = "huge=always"
	}
	fds := make(chan int)
	go func() { // ends with its thread, whose namespace has the mount
		runtime.LockOSThread()
		dir := b.TempDir()
		for _, err := range []error{
			unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_FS),
			unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
			unix.Mount("tmpfs", dir, "tmpfs", 0, options),
		} {
			if err != nil {
				b.Errorf("a tmpfs with %s: %v", options, err)
			}
		}
		fd, err := unix.Open(dir+"/segment", unix.O_RDWR|unix.O_CREAT, 0o600)
		if err != nil {
			b.Error(err)
		}
		fds <- fd
	}()
	fd := <-fds
	defer unix.Close(fd)
	if err := unix.Ftruncate(fd, size); err != nil {
		b.Fatal(err)
	}
	open := func(prot int) []byte {
		mem, err := unix.Mmap(fd, 0, size, prot, unix.MAP_SHARED|unix.MAP_NORESERVE)
		if err != nil {
			b.Fatal(err)
		}
		return mem
	}
	write, read := open(unix.PROT_READ|unix.PROT_WRITE), open(unix.PROT_READ)
	defer arena.Unmap(write)
	defer arena.Unmap(read)
	source, target := bytes.Repeat([]byte{1}, frame), make([]byte, frame)
	at := 0
	once := func() {
		copy(write[at:][:frame], source)
		copy(target, read[at:][:frame])
	}
	next := func() {
		if at += (frame + 4095) &^ 4095; at+frame <= size {
			return
		}
		if at = 0; reused {
			return
		}
		if err := unix.Fallocate(fd, unix.FALLOC_FL_KEEP_SIZE|unix.FALLOC_FL_PUNCH_HOLE, 0, size); err != nil {
			b.Fatal(err)
		}
	}
	if reused {
		for range 2 * size / frame {
			once()
			next()
		}
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var total time.Duration
	for b.Loop() {
		began := cpuTime(b)
		once()
		total += cpuTime(b) - began
		next()
	}
	b.ReportMetric(float64(total.Nanoseconds())/1e3/float64(b.N), "cpu-µs/frame")
	b.ReportMetric(float64(hugeBytes(b))/mib, "huge-MiB")
}

// cpuTime is the processor time of the calling thread.
func cpuTime(b *testing.B) time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		b.Error(err)
	}
	return time.Duration(t.Nano())
}

// hugeBytes returns how much shared memory this process maps in huge pages.
func hugeBytes(b *testing.B) (n int64) {
	b.Helper()
	text, err := os.ReadFile("/proc/self/smaps_rollup")
	if err != nil {
		b.Fatal(err)
	}
	if _, rest, ok := strings.Cut(string(text), "ShmemPmdMapped:"); ok {
		fmt.Sscan(rest, &n)
	}
	return n << 10
}
