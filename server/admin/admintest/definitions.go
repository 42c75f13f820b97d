package admintest

import (
	"context"
	"net/http"
	"slices"
)

// definitions are the applications or the pipelines of a server.
type definitions[D any] struct {
	*Server
	what  string
	list  *[]D            // guarded by mu
	keep  func(*D) string // completes one that is kept, and returns its name
	check func(D) error
	gone  func(name string)
}

func (ds definitions[D]) List() ([]D, error) {
	ds.mu.Lock()
	defer ds.mu.Unlock()
	return slices.Clone(*ds.list), nil
}

func (ds definitions[D]) Check(d D) error { return ds.check(d) }

// at returns the index of one. ds.mu is held.
func (ds definitions[D]) at(name string) (int, error) {
	i := slices.IndexFunc(*ds.list, func(d D) bool { return ds.keep(&d) == name })
	if i < 0 {
		return i, refuse(http.StatusNotFound, "no %s %q", ds.what, name)
	}
	return i, nil
}

func (ds definitions[D]) Create(_ context.Context, d D) (D, error) {
	ds.mu.Lock()
	defer ds.mu.Unlock()
	name := ds.keep(&d)
	if i, _ := ds.at(name); i >= 0 {
		return d, refuse(http.StatusConflict, "exists already: %s %q", ds.what, name)
	}
	*ds.list = append(*ds.list, d)
	return d, nil
}

func (ds definitions[D]) Change(_ context.Context, name string, change func(D) (D, error)) (d D, err error) {
	ds.mu.Lock()
	defer ds.mu.Unlock()
	i, err := ds.at(name)
	if err != nil {
		return d, err
	}
	if d, err = change((*ds.list)[i]); err == nil {
		err = ds.check(d)
	}
	if err != nil {
		return d, err
	}
	ds.keep(&d)
	(*ds.list)[i] = d
	return d, nil
}

func (ds definitions[D]) Delete(_ context.Context, name string) error {
	ds.mu.Lock()
	defer ds.mu.Unlock()
	i, err := ds.at(name)
	if err == nil {
		*ds.list = slices.Delete(*ds.list, i, i+1)
		ds.gone(name)
	}
	return err
}
