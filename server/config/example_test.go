package config_test

import (
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/shivad/shivad/server/config"
)

// A file has the settings that differ from the defaults, and flags take precedence over the file.
// Validate then lists all faults, by key, each with the origin of its value.
func ExampleLoad() {
	dir, err := os.MkdirTemp("", "config")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "shivad.toml")
	if err := os.WriteFile(path, []byte("[model.digits]\nobjective = \"20ms\"\n"), 0o600); err != nil {
		log.Fatal(err)
	}
	cfg, err := config.Load(path)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(cfg.Model("digits").Objective, cfg.TCP.Listen)
	if err := cfg.Set("tcp.loops", "2000", "--loops"); err != nil {
		log.Fatal(err)
	}
	fmt.Println(cfg.Validate())
	// Output:
	// 20ms [:6174]
	// config: --loops: tcp.loops: expected 0 to 1024, got 2000
}
