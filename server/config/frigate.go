package config

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/shivad/shivad/scheduler/naming"
)

// Frigate is the door for object detectors of Frigate, which speak ZeroMQ. Fields without a comment
// mean the same as in TCP.
type Frigate struct {
	Listen Addrs `toml:"listen" default:"" restart:"it is open"`
	Door
	Connections int `toml:"connections" default:"256" min:"1" max:"16777216"`
	// RequestTimeout is the detectors' own request_timeout_ms. A request whose answer would be
	// later is answered in time, without detections.
	RequestTimeout time.Duration `toml:"request_timeout" default:"200ms" min:"10ms"`
	// Models maps what detectors ask for to a model, "model/version" or an application. Keys are
	// "FILE", "FILE:TYPE", "*:TYPE" or "*", where FILE is the name of a model's file and TYPE a
	// model_type of Frigate. Without a matching key a detector gets the model named like the file
	// without its extension.
	Models map[string]string `toml:"models"`
	// ModelDirectory is where the model files that detectors send are stored; "" = none are
	// accepted. ModelBytes is the size of the largest file, ModelFiles the most files there.
	ModelDirectory string `toml:"model_directory" restart:"it is open"`
	ModelBytes     Bytes  `toml:"model_bytes" default:"128MiB" min:"1B"`
	ModelFiles     int    `toml:"model_files" default:"16" min:"1" max:"65536"`
}

// frigateTypes are the model types that Frigate has.
var frigateTypes = []string{"dfine", "rfdetr", "ssd", "yologeneric", "yolonas", "yolox"}

func (c Config) validateFrigate(fs *faults) {
	f := c.Frigate
	if f.ModelDirectory != "" && f.ModelBytes > c.Limits.MessageBytes {
		fs.Add("frigate.model_bytes", "%v is above limits.message_bytes, %v: the message ends first",
			f.ModelBytes, c.Limits.MessageBytes)
	}
	for _, asked := range slices.Sorted(maps.Keys(f.Models)) {
		key := joinKey("frigate.models", asked)
		fs.Check(key, checkAsked(asked))
		model, version, versioned := strings.Cut(f.Models[asked], "/")
		fs.Check(key, naming.CheckModel(model))
		if versioned {
			fs.Check(key, naming.CheckVersion(version))
		}
	}
}

// checkAsked checks a key of Frigate.Models.
func checkAsked(key string) error {
	file, kind, typed := strings.Cut(key, ":")
	if file == "" || strings.ContainsAny(file, "/\\") {
		return errors.New(`expected the name of a file as in the model's path, "*", or one of them, a colon and a model_type, as "yolo.onnx:yolox"`)
	}
	if plain := strings.ReplaceAll(kind, "-", ""); typed && !slices.Contains(frigateTypes, plain) {
		return fmt.Errorf("no model_type %q; Frigate has %s", kind, strings.Join(frigateTypes, ", "))
	}
	return nil
}
