package parameter

import (
	"slices"
	"strings"

	"github.com/shivad/shivad/shiva/jsonscan"
)

// Forward adds headers of a request to object, the JSON object of its parameters for the container
// or nil, and returns it: each of the names, in lower case, with the text of its values, which
// values returns. A parameter that the request has itself prevails. Bytes that are not UTF-8 become
// U+FFFD. Without a header to add, object is returned as it is.
func Forward(object []byte, names []string, values func(name string) []string) []byte {
	for _, name := range names {
		given := values(name)
		if len(given) == 0 || jsonscan.Field(object, name) != nil {
			continue
		}
		between := ", "
		if name == "cookie" {
			between = "; "
		}
		open := object[:max(len(object)-1, 0)] // without its bracket
		if len(open) == 1 {
			open = nil
		}
		object = append(jsonscan.AppendMember(open, name, jsonscan.AppendString(nil, strings.Join(given, between))),
			'}')
	}
	return object
}

// unforwarded are headers with a client's rights, and those that concern a connection or a body
// instead of a request.
var unforwarded = []string{"authorization", "proxy-authorization", "connection", "content-length", "host", "keep-alive",
	"te", "trailer", "transfer-encoding", "upgrade"}

// CheckForward says why a header cannot reach a container as a parameter; "" if it can. The name is
// in lower case.
func CheckForward(name string) (why string) {
	letter := func(c rune) bool {
		return 'a' <= c && c <= 'z' || '0' <= c && c <= '9' || strings.ContainsRune("!#$%&'*+-.^_`|~", c)
	}
	switch {
	case name == "" || strings.ContainsFunc(name, func(c rune) bool { return !letter(c) }):
		return "expected the name of a header, such as x-request-id"
	case slices.Contains(unforwarded, name):
		return "it is never forwarded, since it has a client's rights or concerns the connection"
	case strings.HasPrefix(name, "grpc-") || strings.HasSuffix(name, "-bin"):
		return "names that begin with grpc- are gRPC's own, and those that end with -bin have bytes instead of a text"
	case slices.ContainsFunc(Table, func(k Key) bool { return k.Name == name }):
		return "the server has a parameter of that name"
	case strings.HasPrefix(name, "triton_") || slices.Contains([]string{"headers", "input_parameters", "output_parameters"}, name):
		return "parameters may not have that name"
	}
	return ""
}
