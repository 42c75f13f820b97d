package gate

import (
	"slices"
	"strings"
)

// platforms are the names that the Predict Protocol allows, each with the spellings that containers
// use. Any other platform, such as "python", is shown as the container declares it: the protocol
// has no name for a model that is a function.
//
// Source: Predict Protocol, version 2, "Platforms"; the names with two words are Triton's.
var platforms = map[string][]string{
	"tensorrt_plan":         {"tensorrt"},
	"tensorflow_graphdef":   {"graphdef"},
	"tensorflow_savedmodel": {"savedmodel"},
	"onnx_onnxv1":           {"onnx", "onnxruntime", "onnxruntime_onnx"},
	"pytorch_torchscript":   {"torchscript", "pytorch_libtorch"},
	"mxnet_mxnet":           {"mxnet"},
	"caffe2_netdef":         {"caffe2"},
}

// Platform is the model's platform, in the spelling of the Predict Protocol if it has one.
func (t *Target) Platform() string {
	own := strings.ToLower(t.Spec.Platform)
	for name, others := range platforms {
		if own == name || slices.Contains(others, own) {
			return name
		}
	}
	return t.Spec.Platform
}
