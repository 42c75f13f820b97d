package server

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/grpc/pb"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/tensor"
)

// A memoryDoor has a door's operations on shared memory, for a client with a token.
type memoryDoor struct {
	register   func(token, name, key string) any // returns a value for verdict, as the next two do
	unregister func(token, name string) any
	use        func(token, region string) any
	status     func(token string) []string // names, each after its identity if that is shown
}

// A listedRegion is a region in what a door answers about memory.
type listedRegion struct{ Identity, Name string }

func listed(list []listedRegion) (names []string) {
	for _, r := range list {
		names = append(names, strings.TrimPrefix(r.Identity+":"+r.Name, ":"))
	}
	return names
}

func (g *guardedServer) memoryDoors(t *testing.T) map[string]memoryDoor {
	rest := g.Addrs().REST[0].String()
	rpc := pb.NewGRPCInferenceServiceClient(g.grpc)
	const memory = "v2/systemsharedmemory/"
	byName := func(name string) string { // in the path of unregister; "" is for all regions
		if name == "" {
			return ""
		}
		return "region/" + name + "/"
	}
	post := func(token, path, body string) any {
		code, _ := g.http(t, rest, token, "POST", "/"+path, body)
		return verdict(t, code)
	}
	told := func(err error) any { return verdict(t, orNil(err)) }
	return map[string]memoryDoor{
		"rest": {
			register: func(token, name, key string) any {
				return post(token, memory+"region/"+name+"/register", fmt.Sprintf(`{"key":%q,"byte_size":8}`, key))
			},
			unregister: func(token, name string) any {
				return post(token, memory+byName(name)+"unregister", "{}")
			},
			use: func(token, region string) any {
				at := fmt.Sprintf(`"parameters":{"shared_memory_region":%q,"shared_memory_byte_size":8}`, region)
				return post(token, "v2/models/m/infer",
					`{"inputs":[{"name":"x","datatype":"UINT8","shape":[1,8],`+at+`}],"outputs":[{"name":"x",`+at+`}]}`)
			},
			status: func(token string) []string {
				var list []listedRegion
				_, body := g.http(t, rest, token, "GET", "/"+memory+"status", "")
				if err := json.Unmarshal([]byte(body), &list); err != nil {
					t.Fatal(err, body)
				}
				return listed(list)
			},
		},
		"tcp": {
			register: func(token, name, key string) any {
				return told(g.shiva(t, token, memory+"region/"+name+"/register", fmt.Sprintf(`"key":%q,"byte_size":8`, key)))
			},
			unregister: func(token, name string) any {
				return told(g.shiva(t, token, memory+byName(name)+"unregister", ""))
			},
			use: func(token, region string) any {
				at := fmt.Sprintf(`"name":"x","region":%q,"offset":0,"byte_size":8`, region)
				return told(g.shiva(t, token, "m",
					`"shared_memory":{"inputs":[{"datatype":"UINT8","shape":[1,8],`+at+`}],"outputs":[{`+at+`}]}`))
			},
			status: func(token string) []string {
				c := dial(t, g.Server)
				defer c.Close()
				answer, err := c.Do(t.Context(), &shiva.Message{Namespace: memory + "status",
					Metadata: fmt.Appendf(nil, `{"token":%q}`, token)})
				if err != nil {
					t.Fatal(err)
				}
				defer answer.Release()
				var list struct{ Regions []listedRegion }
				if err := json.Unmarshal(answer.Metadata, &list); err != nil {
					t.Fatal(err)
				}
				return listed(list.Regions)
			},
		},
		"grpc": {
			register: func(token, name, key string) any {
				q := &pb.SystemSharedMemoryRegisterRequest{Name: name, Key: key, ByteSize: 8}
				_, err := rpc.SystemSharedMemoryRegister(as(t, token), q)
				return told(err)
			},
			unregister: func(token, name string) any {
				q := &pb.SystemSharedMemoryUnregisterRequest{Name: name}
				_, err := rpc.SystemSharedMemoryUnregister(as(t, token), q)
				return told(err)
			},
			use: func(token, region string) any {
				at := map[string]*pb.InferParameter{
					"shared_memory_region":    {ParameterChoice: &pb.InferParameter_StringParam{StringParam: region}},
					"shared_memory_byte_size": {ParameterChoice: &pb.InferParameter_Int64Param{Int64Param: 8}},
				}
				_, err := rpc.ModelInfer(as(t, token), &pb.ModelInferRequest{ModelName: "m",
					Inputs: []*pb.ModelInferRequest_InferInputTensor{
						{Name: "x", Datatype: "UINT8", Shape: []int64{1, 8}, Parameters: at}},
					Outputs: []*pb.ModelInferRequest_InferRequestedOutputTensor{{Name: "x", Parameters: at}}})
				return told(err)
			},
			status: func(token string) []string {
				list, err := rpc.SystemSharedMemoryStatus(as(t, token), &pb.SystemSharedMemoryStatusRequest{})
				if err != nil {
					t.Fatal(err)
				}
				return slices.Sorted(maps.Keys(list.Regions))
			},
		},
	}
}

// A region belongs to one identity: others cannot use, see or unregister it, and may have one of
// the same name, but not of a file that is not theirs. Operators see all. A reload that removes the
// identity removes its regions.
func TestRegionsAreAnIdentitys(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a", "b"} {
		if err := os.WriteFile(filepath.Join(dir, name), make([]byte, 8), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Link(filepath.Join(dir, "a"), filepath.Join(dir, "alias")); err != nil {
		t.Fatal(err)
	}
	log := new(logged)
	s, file := loaded(t, log, func(c *config.Config) {
		c.SharedMemory.Directory = dir
		c.Identities = []config.Identity{declared("ann", "infer"), declared("bob", "infer"),
			declared("operator", "admin:read"), declared("deaf", "feedback")}
		c.Identities[0].Regions, c.Identities[1].Regions = []string{"/a"}, []string{"b"}
	})
	x := []tensor.Spec{{Name: "x", DType: tensor.Uint8, Shape: tensor.Shape{-1, -1}}}
	if _, err := s.Scheduler().AddReplica(scheduler.ModelID{Name: "m", Version: "1"},
		scheduler.Spec{Inputs: x, Outputs: x}, scheduler.WorkerFunc(echo), scheduler.ReplicaOptions{}); err != nil {
		t.Fatal(err)
	}
	g := &guardedServer{Server: s, file: file, log: log, grpc: dialGRPC(t, s)}
	ann, bob, operator, deaf := tokenOf("ann"), tokenOf("bob"), tokenOf("operator"), tokenOf("deaf")
	doors := g.memoryDoors(t)
	for name, door := range doors {
		absent := map[string]any{"rest": "HTTP 404", "tcp": "NotFound"}[name]
		for i, step := range []struct{ got, want any }{
			{door.register(bob, "first", "a"), denied},
			{door.register(ann, "r", "a"), allowed},
			{door.use(ann, "r"), allowed},
			{door.use(bob, "r"), absent},
			{fmt.Sprint(door.status(bob)), "[]"},
			{door.unregister(bob, "r"), allowed},
			{door.unregister(bob, ""), allowed},
			{door.register(bob, "x", "a"), denied},
			{door.register(bob, "x", "alias"), denied},
			{door.register(bob, "r", "b"), allowed},
			{door.register(ann, "again", "a"), allowed},
			{door.register(deaf, "d", "a"), denied},
			{door.register(operator, "d", "a"), denied},
			{door.use(operator, "r"), denied},
			{fmt.Sprint(door.status(ann)), "[again r]"},
			{fmt.Sprint(door.status(bob)), "[r]"},
			{len(door.status(operator)), 3},
			{door.unregister(ann, ""), allowed},
			{door.use(ann, "r"), absent},
			{door.use(bob, "r"), allowed},
			{door.unregister(bob, "r"), allowed},
			{fmt.Sprint(door.status(operator)), "[]"},
		} {
			if step.want != nil && step.got != step.want {
				t.Errorf("%s, step %d: %v, expected %v", name, i, step.got, step.want)
			}
			if step.want == nil && (step.got == allowed || step.got == denied) {
				t.Errorf("%s, step %d: %v, expected that there is none", name, i, step.got)
			}
		}
	}
	doors["rest"].register(ann, "r", "a")
	doors["grpc"].register(bob, "r", "b")
	if got := fmt.Sprint(doors["tcp"].status(operator), doors["rest"].status(operator),
		doors["grpc"].status(operator)); got != "[ann:r bob:r] [ann:r bob:r] [bob/r r]" {
		t.Errorf("an operator sees %s", got)
	}
	reloads(t, s, file, func(c *config.Config) { c.Identities = slices.Delete(c.Identities, 0, 1) })
	if got := fmt.Sprint(doors["tcp"].status(operator), " ", doors["tcp"].use(bob, "r")); got != "[bob:r] "+allowed {
		t.Errorf("after ann has gone: %s", got)
	}
	reloads(t, s, file, func(c *config.Config) { c.Identities = nil })
	if got := fmt.Sprint(doors["rest"].status("")); got != "[]" {
		t.Errorf("without identities: %s", got)
	}
}
