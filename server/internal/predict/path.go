package predict

import (
	"encoding/json"
	"strings"
)

// Describe answers the paths of the protocol that tell of models and that the gate does not know, for a door whose requests are named by
// a path alone: a model's configuration, statistics, the names there are and the repository index, of which onlyReady leaves those that can be asked. The
// answer is a JSON object; the index is its member "models", as in gRPC. ok is false when path is none of them.
func (s *Service) Describe(path string, onlyReady bool) (answer []byte, ok bool, err error) {
	var said any
	switch path {
	case "v2/models":
		said = map[string][]string{"models": append([]string{}, s.Names()...)}
	case "v2/models/stats":
		said, err = s.Statistics("", "")
	case "v2/repository/index":
		said = map[string][]IndexEntry{"models": s.Index(onlyReady)}
	default:
		of, isModel := strings.CutPrefix(path, "v2/models/")
		of, wantConfig := strings.CutSuffix(of, "/config")
		of, wantStats := strings.CutSuffix(of, "/stats")
		name, version, versioned := strings.Cut(of, "/versions/")
		if !isModel || wantConfig == wantStats || name == "" || strings.Contains(name+version, "/") || versioned && version == "" {
			return nil, false, nil
		}
		if wantConfig {
			said, err = s.ModelConfig(name, version)
		} else {
			said, err = s.Statistics(name, version)
		}
	}
	if err != nil {
		return nil, true, err
	}
	answer, err = json.Marshal(said)
	return answer, true, err
}
