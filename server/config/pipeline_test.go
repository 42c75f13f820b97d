package config

import (
	"strings"
	"testing"
)

var pipelineFaults = []faulty{
	{"pipelines", `[pipeline.plates]
inputs = ["image"]
slo = "1us"
[[pipeline.plates.stage]]
name = "find"
model = "finder"
inputs = { image = "image" }
[[pipeline.plates.stage]]
name = "read"
model = "reader/2"
each = "find.boxes"
margin = -1
[pipeline.plates.stage.keep]
smallest = 2.5
[pipeline."a/b"]
[[pipeline.circle.stage]]
name = "x"
model = "m"
inputs = { i = "x.o" }
`, []string{
		`x.toml:3:1: pipeline.plates.slo: slo: 1µs, expected 1ms to 24h`,
		`x.toml:12:1: pipeline.plates.stage[1].margin: stage "read": margin: -1, expected 0 to 10 times the side of a box`,
		`x.toml:14:1: pipeline.plates.stage[1].keep.smallest: stage "read": keep: smallest: 2.5, expected 0 to 1, a part of the picture's side`,
		`x.toml:15:11: pipeline."a/b": "a/b" has a '/', which separates model and version in a route`,
		`x.toml:16:19: pipeline.circle.stage: stages "x" → "x" read one another in a circle`,
	}},
	{"circles of pipelines", `[pipeline.c]
inputs = ["x"]
[[pipeline.c.stage]]
name = "s"
model = "b"
inputs = { x = "x" }
[pipeline.a]
inputs = ["x"]
[[pipeline.a.stage]]
name = "s"
model = "c"
inputs = { x = "x" }
[[pipeline.a.stage]]
name = "model"
model = "m"
inputs = { x = "x" }
[pipeline.b]
inputs = ["x"]
[[pipeline.b.stage]]
name = "s"
model = "a"
inputs = { x = "x" }
[pipeline.itself]
inputs = ["x"]
[[pipeline.itself.stage]]
name = "s"
model = "itself"
inputs = { x = "x" }
[pipeline.Outside]
inputs = ["x"]
[[pipeline.Outside.stage]]
name = "s"
model = "c"
inputs = { x = "x" }
`, []string{
		`x.toml:9:14: pipeline.a.stage: pipelines "a" → "c" → "b" → "a" contain one another in a circle`,
		`x.toml:25:19: pipeline.itself.stage: pipelines "itself" → "itself" contain one another in a circle`,
	}},
	{"stages of a name that is misspelled", `[pipeline.signs]
inputs = ["image"]
[[pipeline.sings.stage]]
name = "find"
model = "finder"
inputs = { image = "image" }
[pipeline.single]
inputs = ["x"]
[[pipeline.single.stage]]
name = "s"
model = "m"
inputs = { x = "x" }
`, []string{
		`x.toml:1:11: pipeline.signs.stage: stages: 0, expected 1 to 32`,
		`x.toml:3:12: pipeline.sings: did you mean pipeline.signs? It has no stages`,
		`x.toml:6:12: pipeline.sings.stage[0].inputs.image: stage "find": input "image": "image" is neither an input of the pipeline nor STAGE.OUTPUT; there are find.…`,
	}},
	{"references of pipelines", `[pipeline.plates]
inputs = ["image"]
outputs = { text = "find.text" }
[[pipeline.plates.stage]]
name = "find"
model = "finder"
inputs = { image = "imgae" }
`, []string{
		`x.toml:7:12: pipeline.plates.stage[0].inputs.image: stage "find": input "image": "imgae" is neither an input of the pipeline nor STAGE.OUTPUT; nearest: image`,
	}},
}

// TestPipelineFaults: what is wrong with a pipeline by itself is said with its line.
func TestPipelineFaults(t *testing.T) {
	for _, c := range pipelineFaults {
		cfg, err := parse("x.toml", []byte(c.file))
		if err != nil {
			t.Fatal(err)
		}
		if got, want := strings.Join(lines(t, cfg.Validate()), "\n"), strings.Join(c.want, "\n"); got != want {
			t.Errorf("%s: got\n%s\nwant\n%s", c.name, got, want)
		}
	}
}
