package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/belayops/belay/apicheck/convert"
	"github.com/belayops/belay/apicheck/lifecycle"
	"github.com/belayops/belay/apicheck/schema"
	"github.com/belayops/belay/backup"
	"github.com/belayops/belay/internal/kubeversion"
)

// convertAccept begins the waivers for kinds whose fields stay equal while their meaning changes: convert@PodDisruptionBudget.
const convertAccept = "convert@"

// objectConverter rewrites objects of a backup for a cluster that no longer serves their version.
func objectConverter(accept []string) backup.Converter {
	var kinds []string
	for _, a := range accept {
		if k, ok := strings.CutPrefix(a, convertAccept); ok {
			kinds = append(kinds, k)
		}
	}
	return func(object []byte, from, to kubeversion.V) (backup.Converted, error) {
		if to.MinorVersion().Compare(from.MinorVersion()) < 0 {
			return backup.Converted{}, fmt.Errorf("the backup is of %s and the cluster runs the older %s", from, to)
		}
		db, err := lifecycle.Default()
		if err != nil {
			return backup.Converted{}, err
		}
		fields, err := schema.Default()
		if err != nil {
			return backup.Converted{}, err
		}
		res := convert.Text(convert.Options{DB: db, From: from.MinorVersion(), To: to.MinorVersion(), Accept: kinds, OnlyRemoved: true, Schema: fields}, object)
		if len(res.Kept) > 0 {
			k := res.Kept[0] // one object, one reason
			if k.Acceptable {
				return backup.Converted{}, fmt.Errorf("%s (look at it, then go on with --accept=%s%s)", k.Why, convertAccept, k.GVK.Kind)
			}
			return backup.Converted{}, errors.New(k.Why)
		}
		if len(res.Gaps) > 0 {
			return backup.Converted{}, errors.New(res.Gaps[0].Why)
		}
		if len(res.Changes) == 0 {
			return backup.Converted{}, fmt.Errorf("%s has it, as far as belay's data say; is it turned off there (--runtime-config)?", to)
		}
		var out backup.Converted
		out.Object = res.Text
		for _, c := range res.Changes {
			for _, n := range c.Notes {
				if !slices.Contains(out.Notes, n) {
					out.Notes = append(out.Notes, n)
				}
			}
		}
		return out, nil
	}
}
