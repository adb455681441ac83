"""Graph to Graph: simplification by rules, folding, control flow; fusion and layout. Passes are pure."""
