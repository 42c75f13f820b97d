package pb

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/bufbuild/protocompile"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
)

//go:embed testdata/triton.txt
var triton string // made of tritonclient 2.73.0 by triton.py in testdata

// Clients were compiled with Triton's files: the files here must have the same names, numbers and
// types. They have the whole service, and of a model's configuration the fields that apply.
func TestTheWireIsTritons(t *testing.T) {
	theirs := map[string][]string{}
	file := ""
	for line := range strings.Lines(triton) {
		line = strings.TrimSpace(line)
		if name, ok := strings.CutPrefix(line, "# "); ok {
			file = name
			continue
		}
		theirs[file] = append(theirs[file], line)
	}
	service := lines(File_grpc_service_proto)
	for _, line := range theirs["grpc_service.proto"] {
		if !slices.Contains(service, line) {
			t.Errorf("missing: %s", line)
		}
	}
	// This field is the open inference protocol's own.
	const properties = "ModelMetadataResponse.properties 6 repeated ModelMetadataResponse.PropertiesEntry"
	for _, line := range service {
		if !slices.Contains(theirs["grpc_service.proto"], line) && !strings.Contains(line, properties) &&
			!strings.Contains(line, ".PropertiesEntry.") {
			t.Errorf("not Triton's: %s", line)
		}
	}
	config := lines(File_model_config_proto)
	for _, line := range config {
		if !slices.Contains(theirs["model_config.proto"], line) {
			t.Errorf("not Triton's: %s", line)
		}
	}
	if len(service) < 190 || len(config) < 50 {
		t.Errorf("only %d and %d lines were compared", len(service), len(config))
	}
}

// The Go code matches the .proto files; if not, run "go generate ./server/grpc/pb".
func TestGeneratedCodeIsUpToDate(t *testing.T) {
	c := protocompile.Compiler{Resolver: &protocompile.SourceResolver{}}
	for _, ours := range []protoreflect.FileDescriptor{File_grpc_service_proto, File_model_config_proto,
		File_external_scaler_proto} {
		files, err := c.Compile(t.Context(), ours.Path())
		if err != nil {
			t.Fatal(err)
		}
		want, got := protodesc.ToFileDescriptorProto(files[0]), protodesc.ToFileDescriptorProto(ours)
		if !proto.Equal(got, want) {
			t.Errorf("%s has changed since the Go code was made of it", ours.Path())
		}
	}
}

// lines describes a file as triton.py does.
func lines(f protoreflect.FileDescriptor) []string {
	var out []string
	name := func(d protoreflect.Descriptor) string { return strings.TrimPrefix(string(d.FullName()), "inference.") }
	enums := func(list protoreflect.EnumDescriptors) {
		for i := range list.Len() {
			for j := range list.Get(i).Values().Len() {
				v := list.Get(i).Values().Get(j)
				out = append(out, fmt.Sprintf("enum %s.%s %d", name(list.Get(i)), v.Name(), v.Number()))
			}
		}
	}
	var messages func(protoreflect.MessageDescriptors)
	messages = func(list protoreflect.MessageDescriptors) {
		for i := range list.Len() {
			m := list.Get(i)
			for j := range m.Fields().Len() {
				d := m.Fields().Get(j)
				line := fmt.Sprintf("field %s.%s %d ", name(m), d.Name(), d.Number())
				if d.Cardinality() == protoreflect.Repeated {
					line += "repeated "
				}
				switch {
				case d.Message() != nil:
					line += name(d.Message())
				case d.Enum() != nil:
					line += name(d.Enum())
				default:
					line += d.Kind().String()
				}
				if o := d.ContainingOneof(); o != nil {
					line += " of " + string(o.Name())
				}
				out = append(out, line)
			}
			enums(m.Enums())
			messages(m.Messages())
		}
	}
	for i := range f.Services().Len() {
		s := f.Services().Get(i)
		for j := range s.Methods().Len() {
			m := s.Methods().Get(j)
			in, back := name(m.Input()), name(m.Output())
			if m.IsStreamingClient() {
				in = "stream " + in
			}
			if m.IsStreamingServer() {
				back = "stream " + back
			}
			out = append(out, fmt.Sprintf("rpc %s.%s %s %s", s.Name(), m.Name(), in, back))
		}
	}
	enums(f.Enums())
	messages(f.Messages())
	return out
}
