package table

import (
	"strings"
	"testing"
)

func TestTables(t *testing.T) {
	head, rows := []string{"what", "n"}, [][]string{{"a", "1000"}, {"longer", "2"}}
	var plain, markdown strings.Builder
	Write(&plain, false, head, rows)
	Write(&markdown, true, head, rows)
	if want := "what        n\na        1000\nlonger      2\n"; plain.String() != want {
		t.Errorf("got\n%swant\n%s", plain.String(), want)
	}
	if want := "| what   |    n |\n| ------ | ---: |\n| a      | 1000 |\n| longer |    2 |\n"; markdown.String() !=
		want {
		t.Errorf("got\n%swant\n%s", markdown.String(), want)
	}
}
