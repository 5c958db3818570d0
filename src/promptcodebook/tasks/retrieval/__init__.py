"""Retrieval over a corpus of short pages: BM25 as the GEPA artifact sets it up."""

from promptcodebook.tasks.retrieval.corpus import Page, passage_of, title_of
from promptcodebook.tasks.retrieval.retriever import Retriever, open_retriever
from promptcodebook.tasks.retrieval.search import Search

__all__ = ["Page", "Retriever", "Search", "open_retriever", "passage_of", "title_of"]
