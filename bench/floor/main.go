// Command floor is the yardstick of bench/operator: the least that a controller-runtime operator does
// for one InferenceServer in mode Fixed, and the load that every operator under comparison gets.
//
//	floor run  -objects FILE [flags]           the operator
//	floor load -stream NS,N,RATE,PARALLEL ...  create servers, watch what becomes of them, print JSON
//
// Both take the cluster from $KUBECONFIG.
package main

import (
	"fmt"
	"os"
)

func main() {
	modes := map[string]func([]string) error{"run": run, "load": load}
	if len(os.Args) < 2 || modes[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: floor run|load [flags]")
		os.Exit(2)
	}
	if err := modes[os.Args[1]](os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
