package parameter

import (
	"strings"
	"testing"
)

func TestForward(t *testing.T) {
	headers := map[string][]string{"x-id": {"7"}, "x-two": {"a", `b"`}, "cookie": {"a=1", "b=2"}, "empty": {""},
		"latin": {"\xe9"}}
	for _, c := range []struct{ object, names, want string }{
		{"", "", ""},
		{"", "absent", ""},
		{`{"a":1}`, "absent", `{"a":1}`},
		{"", "x-id", `{"x-id":"7"}`},
		{"{}", "x-id", `{"x-id":"7"}`},
		{`{"a":1}`, "x-id absent x-two", `{"a":1,"x-id":"7","x-two":"a, b\""}`},
		{`{"x-id":"mine"}`, "x-id cookie", `{"x-id":"mine","cookie":"a=1; b=2"}`},
		{`{"x-\u0069d":null}`, "x-id", `{"x-\u0069d":null}`},
		{"", "x-id x-id", `{"x-id":"7"}`},
		{"", "empty latin", `{"empty":"","latin":"` + "\uFFFD" + `"}`},
	} {
		got := Forward([]byte(c.object), strings.Fields(c.names), func(name string) []string { return headers[name] })
		if string(got) != c.want {
			t.Errorf("%s and %s: got %s, expected %s", c.object, c.names, got, c.want)
		}
	}
}

func TestCheckForward(t *testing.T) {
	for name, word := range map[string]string{
		"x-request-id": "", "cookie": "", "user-agent": "", "x_y": "",
		"": "expected", "X-Id": "expected", "x id": "expected", ":path": "expected", "é": "expected",
		"authorization": "rights", "proxy-authorization": "rights", "host": "connection", "content-length": "connection",
		"grpc-timeout": "gRPC's own", "x-bin": "bytes", "priority": "the server has", "in_order": "the server has",
		"traceparent": "the server has",
		"triton_x":    "may not", "input_parameters": "may not", "headers": "may not",
	} {
		if why := CheckForward(name); (why == "") != (word == "") || !strings.Contains(why, word) {
			t.Errorf("%q: got %q, expected %q", name, why, word)
		}
	}
}
