package setting

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

func TestKeep(t *testing.T) {
	for text, want := range map[string]Keep{"all": KeepAll, "latest": KeepLatest, "1": 1, "7": 7, "1024": MaxKeep} {
		got, err := ParseKeep(text)
		if err != nil || got != want || !got.Valid() {
			t.Errorf("%q: %d, %v; expected %d", text, got, err, want)
		}
		value, err := json.Marshal(got)
		var again Keep
		if err != nil || json.Unmarshal(value, &again) != nil || again != want {
			t.Errorf("%q is %s in JSON, which is read as %d", text, value, again)
		}
	}
	for _, text := range []string{"", "newest", "0", "-1", "1025", "1.5", "ALL", "99999999999999999999"} {
		if k, err := ParseKeep(text); err == nil ||
			!strings.Contains(err.Error(), fmt.Sprintf("%s, got %q", KeepValues, text)) {
			t.Errorf("%q: %v, %v", text, k, err)
		}
	}
	for _, value := range []string{`true`, `{}`, `[1]`, `1e2`, `1.5`, `0`, `"0"`, `-1`} {
		var k Keep
		if err := json.Unmarshal([]byte(value), &k); err == nil {
			t.Errorf("%s is read as %d", value, k)
		}
	}
	var k Keep
	if value, err := json.Marshal(k); string(value) != `""` || err != nil || json.Unmarshal(value, &k) != nil ||
		k != 0 || k.Valid() {
		t.Errorf("the zero value is %s, %v", value, err)
	}
}
