"""From a MediaWiki dump to pre-training files: download, dump, wikitext, formatting, sharding, instances, hdf5."""
