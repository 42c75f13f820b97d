package config

import (
	"maps"
	"slices"
)

// Clone returns a copy that shares nothing with c.
func (c Config) Clone() Config {
	c.Server.RequiredModels = slices.Clone(c.Server.RequiredModels)
	c.REST.CORSOrigins = slices.Clone(c.REST.CORSOrigins)
	c.REST.ForwardHeaders = slices.Clone(c.REST.ForwardHeaders)
	c.GRPC.ForwardHeaders = slices.Clone(c.GRPC.ForwardHeaders)
	c.Admin.Hosts = slices.Clone(c.Admin.Hosts)
	c.SharedMemory.Owners = slices.Clone(c.SharedMemory.Owners)
	for _, d := range c.Doors() {
		*d.Listen = slices.Clone(*d.Listen)
	}
	for _, addrs := range []*Addrs{&c.Containers.Listen, &c.Containers.ListenV1b, &c.Containers.ListenV2,
		&c.Containers.ListenV2a} {
		*addrs = slices.Clone(*addrs)
	}
	c.Frigate.Models = maps.Clone(c.Frigate.Models)
	c.Models = cloned(c.Models)
	c.Routes = cloned(c.Routes)
	for name, r := range c.Routes {
		r.Metadata = cloned(r.Metadata) // the values are not written to
		c.Routes[name] = r
	}
	c.Pipelines = cloned(c.Pipelines)
	for name, p := range c.Pipelines {
		c.Pipelines[name] = clonePipeline(p)
	}
	c.Supervised = slices.Clone(c.Supervised)
	for i := range c.Supervised {
		p := &c.Supervised[i]
		p.Command, p.Process, p.Serve = slices.Clone(p.Command), p.Process.clone(), slices.Clone(p.Serve)
	}
	c.ModelFiles = slices.Clone(c.ModelFiles)
	for i := range c.ModelFiles {
		m := &c.ModelFiles[i]
		m.Reading, m.Process = m.Reading.clone(), m.Process.clone()
	}
	c.ModelFolders = slices.Clone(c.ModelFolders)
	for i := range c.ModelFolders {
		m := &c.ModelFolders[i]
		m.Reading, m.Process = m.Reading.clone(), m.Process.clone()
	}
	c.Identities = slices.Clone(c.Identities)
	for i := range c.Identities {
		one := &c.Identities[i]
		one.TokenSHA256, one.Certificate, one.May = slices.Clone(one.TokenSHA256), slices.Clone(one.Certificate),
			slices.Clone(one.May)
		one.Regions = slices.Clone(one.Regions)
	}
	c.origins = cloned(c.origins)
	return c
}

func (r Reading) clone() Reading {
	r.Device = slices.Clone(r.Device)
	return r
}

func (p Process) clone() Process {
	p.Env, p.InheritEnv, p.Writable = maps.Clone(p.Env), slices.Clone(p.InheritEnv), slices.Clone(p.Writable)
	return p
}

// cloned returns a copy that can be written to, even of nil.
func cloned[V any](m map[string]V) map[string]V {
	out := make(map[string]V, len(m))
	maps.Copy(out, m)
	return out
}
