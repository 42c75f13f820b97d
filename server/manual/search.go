package manual

import (
	"cmp"
	"math"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// A Hit is a page that a search has found, and the section of it that fits best.
type Hit struct {
	Page    Page
	Section Section
	score   float64
}

// Search returns the pages that have words of the query, the best first, at most twenty. A page
// that names the query among its words comes first, then one whose text has it as it is, if it is
// the name of a setting or a metric. Otherwise a word counts more in the words and the title of a
// page than in its headings, and there more than in its text, and the more the fewer pages have it.
func Search(query string) []Hit {
	terms := stems(query)
	if len(terms) == 0 {
		return nil
	}
	pages := index()
	having := make([]int, len(terms)) // pages that have each term
	for _, p := range pages {
		for i, term := range terms {
			if p.weight(term) > 0 {
				having[i]++
			}
		}
	}
	var hits []Hit
	for _, p := range pages {
		score, found := 0.0, 0
		for i, term := range terms {
			if weight := p.weight(term); weight > 0 {
				score += weight * math.Log(1+float64(len(pages))/float64(having[i]))
				found++
			}
		}
		share := float64(found) / float64(len(terms))
		score *= share * share
		if strings.Contains(query, "_") && strings.Contains(p.Text, query) {
			score += 1e3
		}
		if slices.ContainsFunc(p.named, func(name []string) bool { return slices.Equal(name, terms) }) {
			score += 1e6
		}
		if score > 0 {
			hits = append(hits, Hit{p.Page, p.best(terms), score})
		}
	}
	slices.SortStableFunc(hits, func(a, b Hit) int { return cmp.Compare(b.score, a.score) })
	return hits[:min(len(hits), 20)]
}

// An indexed page has the stems of its parts, and how often they occur.
type indexed struct {
	Page
	named           [][]string // each of its words
	title, words    map[string]int
	headings, text  map[string]int
	sections        []Section
	stemsOfSections []map[string]int
}

// index is made when somebody searches for the first time: a megabyte, in milliseconds.
var index = sync.OnceValue(func() (pages []indexed) {
	for _, page := range Pages()[1:] {
		p := indexed{
			Page: page, sections: page.Sections(), title: count(page.Title + " " + page.Name),
			words: count(strings.Join(page.Words, " ")), headings: map[string]int{}, text: map[string]int{},
		}
		for _, word := range page.Words {
			p.named = append(p.named, stems(word))
		}
		for _, s := range p.sections {
			in := count(s.Text)
			for stem, n := range in {
				p.text[stem] += n
			}
			for stem, n := range count(s.Heading) {
				p.headings[stem] += n
				in[stem] += n
			}
			p.stemsOfSections = append(p.stemsOfSections, in)
		}
		pages = append(pages, p)
	}
	return pages
})

// weight is how much a term says about the page.
func (p *indexed) weight(term string) float64 {
	weight := math.Log1p(float64(p.text[term]))
	for _, field := range []struct {
		stems map[string]int
		worth float64
	}{{p.headings, 5}, {p.title, 20}, {p.words, 20}} {
		if field.stems[term] > 0 {
			weight += field.worth
		}
	}
	return weight
}

// best returns the section that has most of the terms; of equal ones the first.
func (p *indexed) best(terms []string) (best Section) {
	most := -1
	for i, in := range p.stemsOfSections {
		found := 0
		for _, term := range terms {
			if in[term] > 0 {
				found++
			}
		}
		if found > most {
			best, most = p.sections[i], found
		}
	}
	return best
}

func count(text string) map[string]int {
	counts := map[string]int{}
	for _, stem := range stems(text) {
		counts[stem]++
	}
	return counts
}

var (
	term = regexp.MustCompile(`[\pL\pN]+`)
	stop = map[string]bool{"the": true, "of": true, "to": true, "and": true, "or": true, "with": true, "without": true,
		"in": true, "on": true, "for": true, "is": true}
)

// stems returns the words of a text in lower case, without endings that say nothing about the
// subject: "batches" and "batching" are "batch".
func stems(text string) (list []string) {
	for _, word := range term.FindAllString(strings.ToLower(text), -1) {
		if stop[word] {
			continue
		}
		for _, ending := range []string{"ing", "es", "ed", "s", "e"} {
			if short, ok := strings.CutSuffix(word, ending); ok && len(short) > 2 {
				word = short
				break
			}
		}
		list = append(list, word)
	}
	return list
}
