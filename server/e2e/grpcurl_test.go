//go:build e2e

package e2e

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	reflection "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/shivad/shivad/shiva/hosttest"
)

const asGRPCurl = "SHIVA_E2E_GRPCURL"

// grpcurlDir returns a directory with a grpcurl: this program, which implements what the pages use
// of it.
func grpcurlDir(t *testing.T) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	hosttest.Script(t, filepath.Join(dir, "grpcurl"), fmt.Sprintf(`%s=1 exec '%s' "$@"`, asGRPCurl, self))
	return dir
}

// grpcurl calls a method, which it knows only from the server's own description.
func grpcurl(args []string) error {
	flags := flag.NewFlagSet("grpcurl", flag.ContinueOnError)
	plaintext, data := flags.Bool("plaintext", false, ""), flags.String("d", "", "")
	if err := flags.Parse(args); err != nil || !*plaintext || flags.NArg() != 2 {
		return fmt.Errorf("expected -plaintext -d JSON ADDRESS SERVICE/METHOD (%v)", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	conn, err := grpc.NewClient(flags.Arg(0), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	service, method, _ := strings.Cut(flags.Arg(1), "/")
	described, err := describe(ctx, conn, service)
	if err != nil {
		return err
	}
	call := described.Methods().ByName(protoreflect.Name(method))
	if call == nil {
		return fmt.Errorf("%s has no method %q", service, method)
	}
	question, answer := dynamicpb.NewMessage(call.Input()), dynamicpb.NewMessage(call.Output())
	if err := protojson.Unmarshal([]byte(*data), question); err != nil {
		return err
	}
	if err := conn.Invoke(ctx, "/"+flags.Arg(1), question, answer); err != nil {
		return err
	}
	fmt.Println(protojson.Format(answer))
	return nil
}

// describe asks the server for a service's description.
func describe(ctx context.Context, conn *grpc.ClientConn, service string) (protoreflect.ServiceDescriptor, error) {
	stream, err := reflection.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
	if err != nil {
		return nil, err
	}
	if err := stream.Send(&reflection.ServerReflectionRequest{
		MessageRequest: &reflection.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: service},
	}); err != nil {
		return nil, err
	}
	answer, err := stream.Recv()
	if err != nil {
		return nil, err
	}
	set := &descriptorpb.FileDescriptorSet{}
	for _, text := range answer.GetFileDescriptorResponse().GetFileDescriptorProto() {
		file := &descriptorpb.FileDescriptorProto{}
		if err := proto.Unmarshal(text, file); err != nil {
			return nil, err
		}
		set.File = append(set.File, file)
	}
	files, err := protodesc.NewFiles(set)
	if err != nil {
		return nil, err
	}
	found, err := files.FindDescriptorByName(protoreflect.FullName(service))
	if err != nil {
		return nil, err
	}
	described, ok := found.(protoreflect.ServiceDescriptor)
	if !ok {
		return nil, fmt.Errorf("%s is no service", service)
	}
	return described, nil
}
