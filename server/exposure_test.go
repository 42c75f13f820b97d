package server

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/grpc/pb"
)

// exposed starts a server whose doors listen on host, with a process of model "m".
func exposed(t *testing.T, log *logged, host, reach string) *Server {
	t.Helper()
	return startLogging(t, slog.New(slog.NewTextHandler(log, nil)), func(c *config.Config) {
		at := host + ":0"
		c.REST.Listen, c.GRPC.Listen, c.Admin.Listen, c.Containers.Listen = config.Addrs{at}, config.Addrs{at}, at,
			config.Addrs{at}
		c.Server.Repository = reach
		c.Supervised = []config.Container{{Name: "p", Model: "m", Command: []string{"sh", "-c", "exec sleep 600"},
			Process: config.Process{Replicas: config.Fixed(1), StopTimeout: 10 * time.Second}}}
	})
}

// here returns the address at which a client of this machine dials a listener.
func here(a net.Addr) string {
	return fmt.Sprintf("127.0.0.1:%d", a.(*net.TCPAddr).Port)
}

// extensions returns the extensions that the HTTP door announces.
func extensions(t *testing.T, s *Server) string {
	t.Helper()
	resp, err := http.Get("http://" + here(s.Addrs().REST[0]) + "/v2")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var v struct{ Extensions []string }
	if err := json.NewDecoder(resp.Body).Decode(&v); err != nil {
		t.Fatal(err)
	}
	return strings.Join(v.Extensions, " ")
}

// Clients can unload models through a door only if it listens on this machine alone, or if the
// operator allows it.
func TestUnloadByStrangers(t *testing.T) {
	for _, c := range []struct {
		host, reach string
		allowed     bool
	}{
		{"", "local", false},
		{"127.0.0.1", "local", true},
		{"", "all", true},
		{"127.0.0.1", "none", false},
	} {
		t.Run(fmt.Sprintf("%q %s", c.host, c.reach), func(t *testing.T) {
			log := new(logged)
			s := exposed(t, log, c.host, c.reach)
			unloaded := func() bool { return s.processes.List()[0].State == "unloaded" }

			resp, err := http.Post("http://"+here(s.Addrs().REST[0])+"/v2/repository/models/m/unload",
				"application/json", strings.NewReader("{}"))
			if err != nil {
				t.Fatal(err)
			}
			body, _ := io.ReadAll(resp.Body)
			resp.Body.Close()
			if c.allowed != (resp.StatusCode == 200) ||
				!c.allowed && (resp.StatusCode != 403 || !bytes.Contains(body, []byte("server.repository"))) {
				t.Errorf("HTTP: %d %s", resp.StatusCode, body)
			}
			if unloaded() != c.allowed {
				t.Errorf("HTTP: unloaded is %v", unloaded())
			}

			conn, err := grpc.NewClient(here(s.Addrs().GRPC[0]),
				grpc.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			_, err = pb.NewGRPCInferenceServiceClient(conn).
				RepositoryModelUnload(ctx, &pb.RepositoryModelUnloadRequest{ModelName: "m"})
			if want := map[bool]codes.Code{true: codes.OK,
				false: codes.PermissionDenied}[c.allowed]; status.Code(err) != want {
				t.Errorf("gRPC: %v, expected %v", err, want)
			}
			if unloaded() != c.allowed {
				t.Errorf("gRPC: unloaded is %v", unloaded())
			}

			if got := strings.Contains(extensions(t, s), "model_repository"); got != c.allowed {
				t.Errorf("model_repository announced: %v", got)
			}
			if got := strings.Count(log.String(), "audit: done"); got != map[bool]int{true: 2}[c.allowed] {
				t.Errorf("%d changes in the log:\n%s", got, log)
			}
			if c.allowed && !regexp.MustCompile(`from=127\.0\.0\.1:\d+ door=rest action=unload what=model name=m`).
				MatchString(log.String()) {
				t.Errorf("the log does not say who it was:\n%s", log)
			}
		})
	}
}

// The log warns at the start about listeners that other machines can reach.
func TestWarningOfStrangers(t *testing.T) {
	const warning = "a listener without authentication can be reached from other machines"
	log := new(logged)
	exposed(t, log, "", "all")
	for _, setting := range []string{"admin.listen", "containers.listen", "server.repository"} {
		if !strings.Contains(log.String(), "setting="+setting) {
			t.Errorf("nothing about %s:\n%s", setting, log)
		}
	}
	quiet := new(logged)
	exposed(t, quiet, "127.0.0.1", "all")
	if strings.Contains(quiet.String(), warning) {
		t.Errorf("a warning about this machine:\n%s", quiet)
	}
}
