package main

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
)

// Copies are counted in a round of its own, whose times are not measured, in servers that count
// what they copy:
//
//   - Programs in Go are built with a memmove that adds its bytes (go build -overlay). The sum is
//     read from their memory.
//   - Programs that use the C library have preload/copies.c preloaded.
//   - The bytes that read and write move between the kernel and a process are in /proc/PID/io.
//
// Loops that read one place and write another, such as those that swap bytes or compute, are not
// copies and are not counted.
type counter struct {
	dir     string // of the counting programs
	preload string // the library
}

// copySymbol is the variable in which the overlay's memmove keeps its sum.
const copySymbol = "runtime.copied"

// overlay returns the name of memmove's source file, and its text with the counting inserted.
func overlay(ctx context.Context) (file string, text []byte, err error) {
	root, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return "", nil, err
	}
	file = filepath.Join(strings.TrimSpace(string(root)), "src/runtime/memmove_amd64.s")
	if text, err = os.ReadFile(file); err != nil {
		return "", nil, err
	}
	const begin = "\tMOVQ\tCX, BX\n"
	if runtime.GOARCH != "amd64" || bytes.Count(text, []byte(begin)) != 1 {
		return "", nil, fmt.Errorf("frames: copies are counted by a change of %s on amd64, and it is not as expected", file)
	}
	text = bytes.Replace(text, []byte(begin), []byte(begin+`
	CMPQ	BX, $1024
	JB	tail
	LOCK
	XADDQ	CX, runtime·copied(SB)
`), 1)
	return file, append(text, "\nGLOBL runtime·copied(SB), NOPTR, $8\n"...), nil
}

// newCounter builds the counting programs.
func newCounter(ctx context.Context, bin string, programs ...string) (*counter, error) {
	c := &counter{dir: filepath.Join(bin, "counting"), preload: filepath.Join(bin, "copies.so")}
	file, text, err := overlay(ctx)
	if err != nil {
		return nil, err
	}
	changed, list := filepath.Join(bin, "memmove.s"), filepath.Join(bin, "overlay.json")
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {file: changed}})
	if err != nil {
		return nil, err
	}
	if err := errors.Join(os.WriteFile(changed, text, 0o600), os.WriteFile(list, replace, 0o600), os.Mkdir(c.dir, 0o755)); err != nil {
		return nil, err
	}
	args := []string{"build", "-overlay", list, "-o", c.dir + string(filepath.Separator)}
	for _, program := range programs {
		args = append(args, "./"+program)
	}
	for _, command := range []*exec.Cmd{
		exec.CommandContext(ctx, "go", args...),
		exec.CommandContext(ctx, "cc", "-O2", "-fPIC", "-shared", "-fno-builtin", "-o", c.preload, "bench/frames/preload/copies.c", "-ldl"),
	} {
		if text, err := command.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("frames: %s: %w\n%s", strings.Join(command.Args, " "), err, text)
		}
	}
	return c, nil
}

// copied returns the bytes that a system's processes have copied so far. Processes that preload the
// library have their counts in dir.
func (c *counter) copied(s *system, dir string) (sum uint64, err error) {
	for _, p := range s.Group {
		tree, err := p.Tree()
		if err != nil {
			return 0, err
		}
		for _, pid := range tree {
			n, err := c.inGo(pid)
			if err != nil {
				return 0, err
			}
			m, err := moved(pid)
			if err != nil {
				return 0, err
			}
			sum += n + m
		}
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		return 0, err
	}
	for _, f := range files {
		count, err := os.ReadFile(filepath.Join(dir, f.Name()))
		if err != nil {
			return 0, err
		}
		if len(count) == 8 {
			sum += binary.LittleEndian.Uint64(count)
		}
	}
	return sum, nil
}

// moved returns the bytes that read and write moved between the kernel and a process.
func moved(pid int) (sum uint64, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid))
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		if name == "rchar" || name == "wchar" {
			n, err := strconv.ParseUint(value, 10, 64)
			if err != nil {
				return 0, err
			}
			sum += n
		}
	}
	return sum, err
}

// inGo reads the sum from the memory of a process; 0 if it is not a counting program in Go.
func (c *counter) inGo(pid int) (uint64, error) {
	program, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	if err != nil || filepath.Dir(program) != c.dir {
		return 0, err
	}
	file, err := elf.Open(program)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	symbols, err := file.Symbols()
	if err != nil {
		return 0, err
	}
	memory, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		return 0, err
	}
	defer memory.Close()
	for _, s := range symbols {
		if s.Name == copySymbol {
			var sum [8]byte
			_, err := memory.ReadAt(sum[:], int64(s.Value))
			return binary.LittleEndian.Uint64(sum[:]), err
		}
	}
	return 0, fmt.Errorf("frames: %s has no %s", program, copySymbol)
}

// count finds for each cell of the table how often a tensor is copied on its way: the bytes copied
// for a request as a multiple of its size.
func count(ctx context.Context, o *options, all results) error {
	c, err := newCounter(ctx, o.bin, programs...)
	if err != nil {
		return err
	}
	for _, k := range kinds {
		if k.peer == "" || o.peers != "" {
			if err := c.countIn(ctx, o, k, all); err != nil {
				return err
			}
		}
	}
	return nil
}

// countIn counts in one server.
func (c *counter) countIn(ctx context.Context, o *options, k *kind, all results) error {
	dir, err := os.MkdirTemp(o.bin, k.name+"-")
	if err != nil {
		return err
	}
	counting := *o
	counting.bin, counting.env = c.dir, []string{"LD_PRELOAD=" + c.preload, "COPIES=" + dir}
	s, err := startSystem(ctx, k, &counting)
	if err != nil {
		return err
	}
	defer s.Stop()
	for _, cell := range o.plan() {
		if cell.kind != k || cell.alone || !cell.size.inTable {
			continue
		}
		before, err := c.copied(s, dir)
		if err != nil {
			return err
		}
		r, err := s.offer(ctx, o, cell)
		if err != nil {
			return fmt.Errorf("frames: counting: %s, %s, %s: %w", k.name, cell.way.name, cell.size.name, err)
		}
		after, err := c.copied(s, dir)
		if err != nil {
			return err
		}
		all[cell].copies = float64(after-before) / float64(r.Taken) / float64(cell.size.bytes())
	}
	return nil
}
