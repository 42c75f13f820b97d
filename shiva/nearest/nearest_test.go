package nearest

import (
	"fmt"
	"testing"
)

func TestNames(t *testing.T) {
	names := []string{"digits", "digest", "resnet50", "yolo", "tls-ca", "m_1"}
	for s, want := range map[string]string{
		"digit": "[digits digest]", "resnet": "[resnet50]", "zebra": "[]",
		"": "[]", "yola": "[yolo]", "ca": "[tls-ca]", "tls-c": "[tls-ca]", "-": "[]",
	} {
		if got := fmt.Sprint(Names(s, names)); got != want {
			t.Errorf("Names(%q) = %s, expected %s", s, got, want)
		}
	}
}
