package doctor

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/internal/capacity"
)

// The limits of the machine, its clock and its GPUs.

func (e *examination) descriptors() {
	const raise = "LimitNOFILE=262144 in the unit, --ulimit nofile=262144 of docker run, or: ulimit -n 262144"
	switch got, all, err := e.cfg.Share(); {
	case err != nil:
		e.wrong(raise, "%v", err)
	case !all:
		var list []string
		for _, d := range e.cfg.Doors() {
			if n, listens := got.Doors[d.Name]; listens && n < *d.Connections {
				list = append(list, fmt.Sprintf("%d of %d %s.connections", n, *d.Connections, d.Name))
			}
		}
		if n := e.cfg.Containers.Sessions; got.Containers < n {
			list = append(list, fmt.Sprintf("%d of %d containers.sessions", got.Containers, n))
		}
		if n := e.cfg.SharedMemory.Regions; e.cfg.SharedMemory.Directory != "" && got.Regions < n {
			list = append(list, fmt.Sprintf("%d of %d shared_memory.regions", got.Regions, n))
		}
		e.note(raise, "enough here for %s", strings.Join(list, ", "))
	default:
		e.ok("enough for all connections of the configuration")
	}
}

func (e *examination) memory() {
	limit := capacity.Memory()
	switch fit, lowered, err := e.cfg.Fit(); {
	case err != nil:
		e.wrong("raise MemoryMax= of the unit or --memory of docker run, or lower limits.payload_bytes", "%v", err)
	case lowered != "":
		e.note("limits.payload_bytes = "+strconv.Quote(fit.Limits.PayloadBytes.String()), "%s", lowered)
	default:
		e.ok("%v (%s), of which limits.payload_bytes takes %v", config.Bytes(limit.Bytes>>20<<20), limit.Source,
			e.cfg.Limits.PayloadBytes)
	}
}

func (e *examination) processors() {
	n, visible := capacity.Processors(), capacity.VisibleProcessors()
	if n < visible {
		e.ok("%d, as the cgroup allows, of %d", n, visible)
		return
	}
	e.ok("%d", n)
}

// clock compares the clock with the times of files that must be older than now, and asks the kernel
// whether somebody sets it.
func (e *examination) clock() {
	const set = "timedatectl set-ntp true"
	now := e.now()
	program, _ := os.Executable()
	for _, file := range []string{e.file, program} {
		if info, err := os.Stat(file); err == nil && info.ModTime().After(now.Add(time.Minute)) {
			e.wrong(set, "it shows %s, but %s was written at %s: certificates seem to be not yet valid, or still valid",
				now.UTC().Format(time.RFC3339), file, info.ModTime().UTC().Format(time.RFC3339))
			return
		}
	}
	if !synchronized() {
		e.note(set, "%s; the kernel knows of nobody who sets it, as NTP does, unless the host of this machine does",
			now.UTC().Format(time.RFC3339))
		return
	}
	e.ok("%s, synchronized", now.UTC().Format(time.RFC3339))
}

// gpus compares the GPUs that model files name with those of the driver. Other devices than
// NVIDIA's say themselves what is wrong, in the log of the process.
func (e *examination) gpus() {
	entries, _ := os.ReadDir(filepath.Join(e.root, "proc/driver/nvidia/gpus"))
	count, usable := len(entries), e.has("dev/nvidiactl")
	faults := len(e.found)
	for _, device := range e.devices() {
		kind, text, numbered := strings.Cut(device, ":")
		if kind != "cuda" && kind != "tensorrt" {
			continue
		}
		number, err := strconv.Atoi(text)
		switch {
		case count == 0:
			e.wrong(`install NVIDIA's driver, --gpus all of docker run, or device = "cpu"`, "device %q, but there is no GPU of NVIDIA", device)
		case !usable:
			e.wrong("PrivateDevices=no in the unit, or --gpus all of docker run", "device %q, but /dev/nvidiactl cannot be reached", device)
		case numbered && (err != nil || number >= count):
			e.wrong(`device = "`+kind+`:0"`, "device %q, but there are %d GPUs, from 0 on", device, count)
		}
	}
	if len(e.found) > faults {
		return
	}
	if count == 0 {
		e.ok("none of NVIDIA; no model file names one")
		return
	}
	version, _, _ := bytes.Cut(e.machine.read("proc/driver/nvidia/version"), []byte("\n"))
	e.ok("%d of NVIDIA, %s", count, bytes.TrimSpace(version))
}

// devices are those that model files name.
func (e *examination) devices() (list []string) {
	for _, m := range e.cfg.ModelFiles {
		list = append(list, m.Reading.Device...)
	}
	for _, m := range e.cfg.ModelFolders {
		list = append(list, m.Reading.Device...)
	}
	return list
}
