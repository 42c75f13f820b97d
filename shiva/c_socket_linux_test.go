package shiva_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shivad/shivad/shiva"
)

const (
	deviceTimedOut = "the transport failed or timed out: \n"
	deviceNotThere = "device: Connection timed out\n"
	deviceHappy    = "success: {\"model\":\"m\"}\n"
)

// A device is shiva/c/test/device.c with the resolver of shiva/c/test/names.c.
func newDevice(t *testing.T) (does func(things ...string) string) {
	t.Helper()
	program := filepath.Join(t.TempDir(), "device")
	compiled(t,
		append([]string{"cc", "-O0", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-Wl,--wrap=getaddrinfo"},
			strict...),
		"c/shiva.c", "c/shiva_posix.c", "c/test/device.c", "c/test/names.c", "-o", program)
	return func(things ...string) string {
		out, _ := exec.CommandContext(t.Context(), program, things...).CombinedOutput() // it says what failed
		return string(out)
	}
}

// A serverThat answers its connections in a way of its own, until the test ends.
func serverThat(t *testing.T, serves func(net.Conn)) (port string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				serves(c)
				<-t.Context().Done()
			}()
		}
	}()
	_, port, _ = net.SplitHostPort(l.Addr().String())
	return port
}

// deaf makes 127.0.0.2 at a port an address that answers nothing, like one that no route leads to:
// the queue of connections to it is full.
func deaf(t *testing.T, port string) {
	t.Helper()
	s, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Close(s) })
	at := &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 2}}
	if _, err := fmt.Sscan(port, &at.Port); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Bind(s, at); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Listen(s, 0); err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("tcp", "127.0.0.2:"+port)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
}

func anAnswer(t *testing.T) []byte {
	t.Helper()
	b, err := shiva.AppendMessage(nil, &shiva.Message{Metadata: []byte(`{"model":"m"}`), Namespace: strings.Repeat("m", 180)})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Whatever a server does or does not do, the client in C ends within its time: as a whole, not for
// each byte or address.
func TestCWaits(t *testing.T) {
	does, answer := newDevice(t), anAnswer(t)
	const pause = 100 * time.Millisecond
	nothing := func(net.Conn) {}
	promptly := func(c net.Conn) { _, _ = c.Write(answer) }
	drips := func(c net.Conn) { // for 20 s
		for _, b := range answer {
			if _, err := c.Write([]byte{b}); err != nil {
				return
			}
			time.Sleep(pause)
		}
	}
	const answers = 30
	for name, test := range map[string]struct {
		host   string
		serves func(net.Conn)
		things []string // SECONDS, and what else the device does
		want   string
	}{
		"silent":        {"127.0.0.1", nothing, []string{"1", "answer"}, deviceTimedOut},
		"drips":         {"127.0.0.1", drips, []string{"1", "answer"}, deviceTimedOut},
		"reads nothing": {"127.0.0.1", nothing, []string{"1", "ask", "m", "16384", "4096"}, "ask: the transport failed or timed out\n"},
		// Each answer has the time anew: together they take longer.
		"steady": {"127.0.0.1", func(c net.Conn) {
			for range answers {
				time.Sleep(pause)
				promptly(c)
			}
		}, append([]string{"2"}, slices.Repeat([]string{"answer"}, answers)...), strings.Repeat(deviceHappy, answers)},
		"no limit":              {"127.0.0.1", promptly, []string{"0", "answer"}, deviceHappy},
		"the second address":    {"127.0.0.2,127.0.0.1", promptly, []string{"4", "answer"}, deviceHappy},
		"no address":            {"127.0.0.2,127.0.0.2", promptly, []string{"1", "answer"}, deviceNotThere},
		"a name found too late": {"late,127.0.0.1", promptly, []string{"1", "answer"}, deviceNotThere},
		"no such name":          {"nobody", promptly, []string{"1"}, "device: No route to host\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			port := serverThat(t, test.serves)
			if strings.Contains(test.host, "127.0.0.2") {
				deaf(t, port)
			}
			if got := does(append([]string{test.host + ":" + port}, test.things...)...); got != test.want {
				t.Errorf("the device says %q, expected %q", got, test.want)
			}
		})
	}
	t.Run("many addresses", func(t *testing.T) {
		t.Parallel()
		const many = 24 // of a second each, that would be so many seconds
		port := serverThat(t, nothing)
		deaf(t, port)
		began := time.Now()
		got := does(strings.Repeat("127.0.0.2,", many)+":"+port, "1")
		if took := time.Since(began); got != deviceNotThere || took > many/2*time.Second {
			t.Errorf("the device says %q after %v, expected %q", got, took, deviceNotThere)
		}
	})
}

// A connection without traffic is probed after a minute.
func TestCKeepsAlive(t *testing.T) {
	does := newDevice(t)
	connected := make(chan string, 1)
	port := serverThat(t, func(c net.Conn) {
		_, device, _ := net.SplitHostPort(c.RemoteAddr().String())
		connected <- keepaliveOf(device)
	})
	said, row := does("127.0.0.1:"+port, "1", "answer"), ""
	select {
	case row = <-connected:
	default:
	}
	var timer, left int
	if row == "" {
		t.Errorf("the device's socket is not in /proc/net/tcp; it says %q", said)
	} else if _, err := fmt.Sscanf(row, "%x:%x", &timer, &left); err != nil || timer != 2 || left > 60*100 {
		t.Errorf("the device's socket has timer %s, expected the second, of at most a minute: %v", row, err)
	}
}

// established is a state in /proc/net/tcp. Sockets that are gone keep their port for a minute.
const established = "01"

// keepaliveOf returns the timer of the connected socket with a local port: "02:" and hundredths of
// a second.
func keepaliveOf(port string) string {
	var local int
	_, _ = fmt.Sscan(port, &local)
	table, _ := os.ReadFile("/proc/net/tcp")
	for line := range strings.Lines(string(table)) {
		if f := strings.Fields(line); len(f) > 5 && f[3] == established && strings.HasSuffix(f[1], fmt.Sprintf(":%04X", local)) {
			return f[5]
		}
	}
	return ""
}
