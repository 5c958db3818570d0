"""A shop's agent as a graph of LangGraph: a model that calls tools, and the tools."""

import json
import sys

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition


@tool
def stock(item: str) -> str:
    """How many of an item the shop has."""
    return "none" if item == "lamp" else "12"


model = ChatOpenAI(model="gpt-4o").bind_tools([stock])


def answer(state: MessagesState) -> MessagesState:
    system = ("system", "You work for a shop. Answer in one word.")
    return {"messages": [model.invoke([system, *state["messages"]])]}


graph = StateGraph(MessagesState)
graph.add_node("answer", answer)
graph.add_node("tools", ToolNode([stock]))
graph.add_edge(START, "answer")
graph.add_conditional_edges("answer", tools_condition)
graph.add_edge("tools", "answer")

if __name__ == "__main__":
    row = json.loads(sys.stdin.readline())
    end = graph.compile().invoke({"messages": [("user", row["input"])]})
    print(end["messages"][-1].content)
