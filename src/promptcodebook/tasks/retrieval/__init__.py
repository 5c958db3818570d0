"""Retrieval over a corpus of short pages: BM25 as the GEPA artifact sets it up."""

from promptcodebook.tasks.retrieval.index import Page, passage_of, title_of
from promptcodebook.tasks.retrieval.retriever import Retriever, Search, open_retriever

__all__ = ["Page", "Retriever", "Search", "open_retriever", "passage_of", "title_of"]
