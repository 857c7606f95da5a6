"""Operations on run folders: best run, cleanup, rollback, sync."""
