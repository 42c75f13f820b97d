//go:build e2e

package e2e

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/shivad/shivad/containers/container"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/hosttest"
	"github.com/shivad/shivad/shiva/tensor"
)

const deviceToken = "a-token-of-a-device"

// Clients that show nothing may use all models except "slow". A message has three seconds to
// arrive.
var devicesConfig = fmt.Sprintf(`
[tcp]
message_timeout = "3s"

[containers]
expected_within = "0s"

[[identity]]
name = "anonymous"
may = ["infer:digits", "serve", "admin:read"]

[[identity]]
name = "device"
token_sha256 = "%x"
may = ["infer"]
`, sha256.Sum256([]byte(deviceToken))) + digits

// A cell is a server that devices of the client in C talk to.
type cell struct {
	*shivad
	t      *testing.T
	device string // the program shiva/c/test/device.c
}

func newCell(t *testing.T) cell {
	t.Helper()
	c := cell{start(t, config(t, devicesConfig)), t, filepath.Join(t.TempDir(), "device")}
	in := filepath.Join(root(t), "shiva", "c")
	if out, err := exec.Command("cc", "-std=c99", "-Wall", "-Wextra", "-Wconversion", "-pedantic", "-Werror", "-O1",
		"-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-o", c.device,
		filepath.Join(in, "test", "device.c"), filepath.Join(in, "shiva.c"), filepath.Join(in, "shiva_posix.c")).
		CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	c.waitReplicas("digits", 1)
	return c
}

// does makes a device do things on a connection, and returns its output, line by line.
func (c cell) does(things ...string) []string {
	return c.doesAt(c.tcp, append([]string{"0"}, things...)...)
}

// doesAt makes it do things at an address.
func (c cell) doesAt(addr string, things ...string) []string {
	out, err := exec.Command(c.device, append([]string{addr}, things...)...).CombinedOutput()
	if _, exited := errors.AsType[*exec.ExitError](err); err != nil && (!exited || len(out) == 0) {
		c.t.Errorf("device at %s, %q: %v\n%s", addr, things, err, out)
	}
	return strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
}

// expect compares a device's output: how each line begins, and words in it.
func (c cell) expect(said []string, lines ...[]string) {
	c.t.Helper()
	if len(said) != len(lines) {
		c.t.Errorf("a device said %q, expected %q", said, lines)
		return
	}
	for i, line := range lines {
		if !strings.HasPrefix(said[i], line[0]) ||
			slices.ContainsFunc(line[1:], func(word string) bool { return !strings.Contains(said[i], word) }) {
			c.t.Errorf("a device said %q, expected %q", said[i], line)
		}
	}
}

const (
	deviceOK      = "success: {"
	deviceRefused = "the server answered with an error, see its metadata: {"
	deviceClosed  = "the server closed the connection: "
)

// Devices send valid and invalid messages to a server, and another client notices nothing.
func TestE2EDevices(t *testing.T) {
	c := newCell(t)
	other, done := c.client(), make(chan struct{})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var failed error
	asked := 0
	go func() { // until ctx ends
		defer close(done)
		for ctx.Err() == nil && failed == nil {
			var m *shiva.Message
			if m, failed = other.Do(context.WithoutCancel(ctx), image(t)); failed == nil {
				m.Release()
				asked++
				time.Sleep(time.Millisecond) // it should notice, not disturb
			}
		}
	}()
	halves := make(chan []string, 1)
	go func() { // until the server closes it, in 3 s
		halves <- c.does("raw", frame(t, half), "answer", "answer")
	}()
	for name, test := range map[string]func(cell){"asks": deviceAsks, "alone": deviceAlone, "streams": deviceStreams,
		"broken": brokenDevices} {
		t.Run(name, func(t *testing.T) { test(cell{c.shivad, t, c.device}) })
	}
	// The device has stopped in the middle of a frame.
	c.expect(<-halves, []string{deviceRefused, `"type":"DeadlineExceeded"`, "42 bytes", "tcp.message_timeout = 3s"},
		[]string{deviceClosed})
	cancel()
	if <-done; failed != nil || asked == 0 {
		t.Errorf("another client, after %d answers: %v", asked, failed)
	}
}

// A device asks, is refused and asks again on one connection; it shows its token, and is accepted.
func deviceAsks(c cell) {
	c.expect(c.does("ask", "digits", "8", "8", "answer", "ask", "nobody", "8", "8", "answer", "ask", "digits/1", "8",
		"8", "answer"),
		[]string{deviceOK, `"model_name":"digits"`},
		[]string{deviceRefused, `"type":"Unauthenticated"`, `infer:nobody`}, []string{deviceOK})
	c.expect(c.does("text", "token", deviceToken, "ask", "nobody", "8", "8", "answer", "ask", "digits", "8", "8", "answer"),
		[]string{deviceRefused, `"type":"NotFound"`}, []string{deviceOK})
	c.expect(c.does("text", "token", "another", "ask", "digits", "8", "8", "answer"), []string{deviceRefused, `"type":"Unauthenticated"`})
	_, port, _ := net.SplitHostPort(c.tcp)
	c.expect(c.doesAt("localhost:"+port, "0", "ask", "digits", "8", "8", "answer"), []string{deviceOK})
}

// A device finds no server at its address, or one that never answers.
func deviceAlone(c cell) {
	c.expect(c.doesAt("127.0.0.1", "0"), []string{"device: Invalid argument"})
	c.expect(c.doesAt("[]:6174", "0"), []string{"device: Invalid argument"})
	// A label of a name has at most 63 bytes: no resolver is asked for this one.
	c.expect(c.doesAt(strings.Repeat("a", 70)+":6174", "0"), []string{"device: No route to host"})
	c.expect(c.doesAt(hosttest.Refusing(c.t), "0"), []string{"device: Connection refused"})
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		c.t.Fatal(err)
	}
	defer silent.Close()
	_, port, _ := net.SplitHostPort(silent.Addr().String())
	c.expect(c.doesAt("[127.0.0.1]:"+port, "1", "ask", "digits", "8", "8", "answer"), []string{"the transport failed or timed out: "})
}

// Eight frames of a stream with keep = "latest" are sent before the first is answered.
func deviceStreams(c cell) {
	ctx, cancel := context.WithCancel(c.t.Context())
	served, goOn := make(chan error, 1), make(chan struct{})
	go func() { // until the test ends
		served <- container.Serve(ctx, container.Model{
			Name: "slow", Version: "1", MaxBatch: 1,
			Inputs:  []tensor.Spec{{Name: "x", DType: tensor.Uint8, Shape: tensor.Shape{-1, 8, 8}}},
			Outputs: []tensor.Spec{{Name: "x", DType: tensor.Uint8, Shape: tensor.Shape{-1, 8, 8}}},
			Predict: func(_ context.Context, b *container.Batch) ([]tensor.Tensor, error) {
				<-goOn
				return b.Inputs, nil
			},
		}, c.containers)
	}()
	defer func() {
		cancel()
		<-served
	}()
	c.waitReplicas("slow", 1)
	const frames = 8
	things := []string{"text", "token", deviceToken}
	for seq := range frames {
		things = append(things, "text", "stream", "cam-3", "text", "keep", "latest", "number", "seq", strconv.Itoa(seq),
			"ask", "slow", "8", "8")
	}
	said := make(chan []string, 1)
	go func() { said <- c.does(append(things, slices.Repeat([]string{"answer"}, frames)...)...) }()
	// One may execute, and one waits; the others are superseded before any answer.
	budgettest.Until(c.t, "frames to be superseded", func() bool {
		var list struct {
			Versions []struct {
				Streams []struct{ Frames, Superseded int }
			}
		}
		c.get("/v1/models/slow/streams", &list)
		return len(list.Versions) == 1 && len(list.Versions[0].Streams) == 1 &&
			list.Versions[0].Streams[0].Frames == frames && list.Versions[0].Streams[0].Superseded >= frames-2
	})
	close(goOn)
	lines := <-said
	executed := 0
	for seq, line := range lines {
		switch {
		case strings.HasPrefix(line, deviceOK) && strings.Contains(line, fmt.Sprintf(`"seq":%d`, seq)):
			executed++
		case !strings.HasPrefix(line, deviceRefused+`"type":"Superseded"`):
			c.t.Errorf("frame %d: %s", seq, line)
		}
	}
	if len(lines) != frames || executed == 0 || executed > 2 || !strings.HasPrefix(lines[len(lines)-1], deviceOK) {
		c.t.Errorf("%d frames executed: %q", executed, lines)
	}
}

// frame returns a picture of 8x8 for the model digits, as a device sends it.
func frame(t *testing.T, change func([]byte) []byte) string {
	t.Helper()
	b, err := shiva.AppendMessage(nil, image(t))
	if err != nil {
		t.Fatal(err)
	}
	return hex.EncodeToString(change(b))
}

func whole(b []byte) []byte { return b }

func half(b []byte) []byte { return b[:42] }

// Broken devices are told what is wrong.
func brokenDevices(c cell) {
	frame := func(change func([]byte) []byte) string { return frame(c.t, change) }
	// It disconnects before it has sent everything, or read an answer.
	c.does("raw", frame(half))
	c.does("raw", frame(whole))

	// One byte less than announced, and one more, before the next frame.
	c.expect(c.does("raw", frame(func(b []byte) []byte { return slices.Delete(b, 30, 31) }), "raw", frame(whole),
		"answer", "answer", "answer"),
		[]string{deviceRefused, `"type":"Unauthenticated"`, `infer:igits\u0006 is required`},
		[]string{deviceRefused, `"type":"Protocol"`, "expected 06420b01, got 420b0100"}, []string{deviceClosed})
	c.expect(c.does("raw", frame(func(b []byte) []byte { return slices.Insert(b, 30, 0) }), "raw", frame(whole),
		"answer", "answer", "answer"),
		[]string{deviceRefused, `"type":"Unauthenticated"`, `infer:\u0000digit is required`},
		[]string{deviceRefused, `"type":"Protocol"`, "expected 06420b01, got 7306420b"}, []string{deviceClosed})
	// A length that does not match the checksum, and one that is too large.
	c.expect(c.does("raw", frame(func(b []byte) []byte { b[7]++; return b }), "answer", "answer"),
		[]string{deviceRefused, `"type":"Protocol"`, "crc1"}, []string{deviceClosed})
	c.expect(c.does("raw", frame(func(b []byte) []byte { b[14] = 0x7f; return b }), "answer", "answer"),
		[]string{deviceRefused, `"type":"TooLarge"`}, []string{deviceClosed})

	// The wrong byte order: of the sizes in the header, and of the dimensions.
	c.expect(c.does("raw", frame(func(b []byte) []byte {
		b = slices.Insert(b, len(b)-len("digits"), []byte("{}")...)
		b[4], b[7] = 2, 0
		b[10] += 2
		b[11] += 4
		return b
	}), "answer", "answer"), []string{deviceRefused, `"type":"Protocol"`, "crc1"}, []string{deviceClosed})
	c.expect(c.does("raw", frame(func(b []byte) []byte {
		slices.Reverse(b[14:18])
		slices.Reverse(b[18:22])
		return b
	}), "answer", "answer"), []string{deviceRefused, `"type":"TooLarge"`}, []string{deviceClosed})

	// A picture of another size, and one of another dtype; the connection continues.
	c.expect(c.does("ask", "digits", "9", "8", "answer", "ask", "digits", "0", "8", "answer", "raw",
		frame(func(b []byte) []byte { b[13] = 4; return b }), "answer", "ask", "digits", "8", "8", "answer"),
		[]string{deviceRefused, `"type":"InvalidInput"`, "got uint8 [9, 8]"},
		[]string{deviceRefused, `"type":"InvalidInput"`},
		[]string{deviceRefused, `"type":"InvalidInput"`, "got int8 [8, 8]"}, []string{deviceOK})
}
