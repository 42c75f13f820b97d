package predict

import (
	"encoding/json"
	"strings"

	"github.com/shivad/shivad/shiva"
)

// shivaExtensions are those that a client has over Shiva, in the words of its metadata: the
// keys "parameters", "priority" and "timeout_ms", and the paths of models' configuration and
// statistics. Of model_repository there is the index only.
var shivaExtensions = []string{"model_configuration", "parameters", "schedule_policy", "statistics"}

// Describe answers what is asked by a path of the protocol alone, as over Shiva: all of them
// but infer, and load and unload. The answer is the JSON object that HTTP gives; the index is
// its member "models", as in gRPC, and onlyReady leaves what can be asked in it. "!server" is
// "v2" in Shiva's own words. ok is false when path is none of these.
func (s *Service) Describe(path string, onlyReady bool) (answer []byte, ok bool, err error) {
	var said any
	switch path {
	case shiva.ServerNamespace, "v2", "v2/":
		said = ServerMetadata{"shivad", s.version, shivaExtensions}
	case "v2/health/live":
		said = Alive
	case "v2/health/ready":
		said = s.Ready()
	case "v2/models":
		said = s.List()
	case "v2/models/stats":
		said, err = s.Statistics("", "")
	case "v2/repository/index":
		said = map[string][]IndexEntry{"models": s.Index(onlyReady)}
	default:
		of, isModel := strings.CutPrefix(path, "v2/models/")
		if !isModel {
			return nil, false, nil
		}
		if said, ok, err = s.describeModel(of); !ok {
			return nil, false, nil
		}
	}
	if err != nil {
		return nil, true, err
	}
	answer, err = json.Marshal(said)
	return answer, true, err
}

// describeModel answers a path below "v2/models/". ok is false when it is none.
func (s *Service) describeModel(path string) (said any, ok bool, err error) {
	of, what := path, ""
	for _, question := range []string{"/ready", "/config", "/stats"} {
		if name, found := strings.CutSuffix(path, question); found {
			of, what = name, question
		}
	}
	name, version, versioned := strings.Cut(of, "/versions/")
	if name == "" || strings.Contains(name+version, "/") || versioned && version == "" {
		return nil, false, nil
	}
	switch what {
	case "/ready":
		said, err = s.ModelReady(name, version)
	case "/config":
		said, err = s.ModelConfig(name, version)
	case "/stats":
		said, err = s.Statistics(name, version)
	default:
		said, err = s.Model(name, version)
	}
	return said, true, err
}
